"""Watching a run: numbers by hand, damaged and hostile folders, the page's server, and the command's exit codes."""

from __future__ import annotations

import http.client
import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsefed
from sparsefed import runs
from sparsefed.commands.watch import LivePage, watch
from sparsefed.commands.watch import live as lives
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.flower.journal import COHORTS, REFUSALS
from tests.support.pages import Text
from tests.support.processes import Nursery, Server
from tests.support.watched import HOSTILE, NODES, deployment, folder_of, grown, refuse


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    return deployment(tmp_path / "live", rows=6)


# --- the state --------------------------------------------------------------------------------------------------------


def test_who_was_refused_late_and_clipped_by_hand(deployed: Path) -> None:
    state = sparsefed.watch(deployed, most_refused=1)
    assert (state.round, state.rounds, state.status) == (6, 50, "interrupted")
    assert state.refused_in[1] == {"not finite": 1}
    assert state.refused_in[3] == {"not finite": 1, "late": 1}
    assert state.refused_in[6] == {"not finite": 1, "late": 1, "keys": 1}
    first = state.nodes[0]
    assert (first.node, first.device, first.refused, first.late, first.asked) == (NODES[3], 3, 6, 0, 6)
    by_node = {account.node: account for account in state.nodes}
    assert (by_node[NODES[5]].refused, by_node[NODES[5]].late) == (2, 2)
    assert {account.device: account.clipped for account in state.nodes if account.clipped} == {2: 6, 4: 6}
    assert len(state.nodes) == 10
    assert [*state.alerts] == [3, 6]
    assert state.alerts[3] == "round 3: 2 refused (1 late, 1 not finite); the limit is 1"


def test_json_and_records_hold_the_same(deployed: Path) -> None:
    state = watch(deployed, most_refused=2)
    values = json.loads(state.to_json())
    assert values["refused"]["6"] == {"not finite": 1, "late": 1, "keys": 1} and len(values["alerts"]) == 1
    assert values["nodes"] == json.loads(json.dumps(state.records()))
    assert values["latest"]["test"] == pytest.approx(0.9 - 0.8 / 6)


def test_a_simulation_is_watched_as_well(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", rows=3)
    state = watch(folder, most_refused=0)
    assert not state.is_deployment and state.alerts == {} and state.nodes == ()
    assert "Nothing was refused" in state.to_html()


def test_unusable_updates_of_a_simulation_count_as_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", rows=3)
    lines = (folder / runs.METRICS).read_bytes().splitlines(keepends=True)
    record = runs.record_of(lines[1])
    assert record is not None
    lines[1] = runs.line({**record[0], "dropped": 4})
    (folder / runs.METRICS).write_bytes(b"".join(lines))
    assert watch(folder, most_refused=3).alerts == {2: "round 2: 4 refused (4 not finite); the limit is 3"}


def test_a_run_without_a_round_can_be_watched(tmp_path: Path) -> None:
    runs.create(tmp_path / "run", {"name": "new", "rounds": 3})
    page = watch(tmp_path / "run").to_html()
    assert "No round is complete yet" in page


@pytest.mark.parametrize("missing", ["folder", "number"])
def test_mistakes_are_one_sentence(tmp_path: Path, missing: str) -> None:
    if missing == "folder":
        with pytest.raises(RunError, match="not a run folder"):
            watch(tmp_path / "nothing")
    else:
        with pytest.raises(ConfigError, match="most_refused is -1"):
            watch(folder_of(tmp_path / "run", 1), most_refused=-1)


refused_lines = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from(NODES), st.sampled_from(["late", "error", "keys"])), max_size=30
)


@settings(max_examples=20)
@given(lines=refused_lines, limit=st.integers(0, 4))
def test_alerts_are_what_counting_gives(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, int, str]], limit: int
) -> None:
    folder = folder_of(tmp_path_factory.mktemp("watched") / "run", rows=6)
    refuse(folder, [(*line, "") for line in lines])
    state = watch(folder, most_refused=limit)
    counts = Counter(round for round, _, _ in lines)
    assert set(state.alerts) == {round for round, count in counts.items() if count > limit}
    for account in state.nodes:
        assert account.refused == sum(node == account.node for _, node, _ in lines)
        assert account.late == sum(node == account.node and reason == "late" for _, node, reason in lines)


HOSTILE_LINES: list[dict[str, Any]] = [
    {"round": 10**15, "node": "5", "device": 0, "reason": "late", "detail": ""},
    {"round": 1, "node": "9" * 4000, "device": 0, "reason": "late", "detail": ""},
    {"round": 1, "node": "x", "device": 0, "reason": "late", "detail": ""},
    {"round": 1, "node": "5", "device": [1], "reason": "late", "detail": ""},
    {"round": 1},
    {"round": 1, "node": "5", "device": 0, "reason": HOSTILE * 100, "detail": HOSTILE * 1000},
]


def test_lines_that_no_deployment_writes_do_no_harm(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", rows=2)
    (folder / REFUSALS).write_bytes(b"".join(map(runs.line, HOSTILE_LINES)))
    bad: list[dict[str, Any]] = [
        {"round": 1, "asked": "x"},
        {"round": 10**15, "asked": [], "used": []},
        {"asked": [], "used": []},
    ]
    (folder / COHORTS).write_bytes(b"".join(map(runs.line, bad)))
    (folder / "roster.json").write_text("[")
    state = watch(folder)
    assert len(state.refusals) == 1 and state.cohorts == () and state.roster == ()
    page = state.to_html()
    Text.of(page)
    assert "<img src=x" not in page and "<script>alert" not in page


# --- the page's server ------------------------------------------------------------------------------------------------


@pytest.fixture
def live(deployed: Path) -> Iterator[LivePage]:
    with LivePage(deployed, most_refused=1) as page:
        yield page


def answer(page: LivePage, path: str = "/", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    port = int(page.address.rsplit(":")[-1].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def test_the_page_is_served_with_a_strict_policy_and_everything_escaped(live: LivePage) -> None:
    response, page = answer(live)
    assert response.status == 200
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self' 'unsafe-eval';" in policy
    assert "frame-ancestors 'none'" in policy and response.headers["X-Content-Type-Options"] == "nosniff"
    scripts = [attrs for tag, attrs in Text.of(page).tags if tag == "script" and "data-chart" not in attrs]
    assert [attrs.get("src") for attrs in scripts] == ["/charts.js", "/script.js"]
    assert "<img src=x" not in page and "&lt;img src=x" in page
    assert "Alert: round 3: 2 refused" in page


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "", "127.0.0.1.evil.example"])
def test_a_foreign_name_for_the_machine_is_refused(live: LivePage, host: str) -> None:
    response, text = answer(live, Host=host)
    assert response.status == 421 and "Round" not in text


@pytest.mark.parametrize(
    "path", ["/nothing", "/../config.toml", "/config.toml", "/%2e%2e/manifest.json", "//config.toml", "/?x"]
)
def test_no_other_path_is_there(live: LivePage, path: str) -> None:
    assert answer(live, path)[0].status == 404


def test_only_reads_are_answered(live: LivePage) -> None:
    port = int(live.address.rsplit(":")[-1].strip("/"))
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, "/")
        assert connection.getresponse().status == 501
        connection.close()


def test_it_listens_on_the_loopback_address_alone(live: LivePage) -> None:
    assert live.address.startswith("http://127.0.0.1:")
    assert live._server.server_address[0] == "127.0.0.1"


def test_a_page_is_sent_again_only_when_the_run_has_changed(
    live: LivePage, deployed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "SHARE", 0)
    first, page = answer(live)
    tag = first.headers["ETag"]
    same, nothing = answer(live, If_None_Match=tag)
    assert (same.status, nothing) == (304, "")
    grown(deployed, 7)
    live.watcher._next = 0.0
    changed, later = answer(live, If_None_Match=tag)
    assert changed.status == 200 and changed.headers["ETag"] != tag
    assert "Round 6 of 50" in page and "Round 7 of 50" in later


def test_a_folder_that_goes_away_is_a_sentence_on_the_page(live: LivePage, deployed: Path) -> None:
    answer(live)
    (deployed / "manifest.json").rename(deployed / "elsewhere.json")
    live.watcher._next = 0.0
    assert "is not a run folder" in answer(live)[1]
    (deployed / "elsewhere.json").rename(deployed / "manifest.json")
    live.watcher._next = 0.0
    assert "Round 6 of 50" in answer(live)[1]


def test_a_port_that_is_taken_is_one_sentence(deployed: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} cannot be used .*; choose another with --port"):
            LivePage(deployed, port=port)
    with pytest.raises(ConfigError, match="port is 70000"):
        LivePage(deployed, port=70000)


# --- the command ------------------------------------------------------------------------------------------------------


def test_exit_codes_and_alert_lines(process_server: Server, tmp_path: Path, deployed: Path) -> None:
    (tmp_path / "out").mkdir()
    nursery = Nursery(process_server, tmp_path / "out")
    fine = nursery.run("watch", deployed, "--once", "--most-refused", "3")
    assert fine.code == 0 and "Nodes, in rounds" in fine.out
    alert = nursery.run("watch", deployed, "--once", "--json", "--most-refused", "2")
    assert alert.code == 3 and len(json.loads(alert.out)["alerts"]) == 1
    ended = nursery.run("watch", deployed, "--no-page", "--to-end", "--most-refused", "1")
    assert ended.code == 3 and ended.err.count("alert: round") == 2
    served = nursery.run("watch", deployed, "--to-end")
    assert served.code == 0 and "http://127.0.0.1:" in served.out
