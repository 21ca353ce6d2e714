"""Leader, helper and devices: bytes in and bytes out, and whatever goes wrong ends in a sentence."""

from __future__ import annotations

import json
import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="secure aggregation is the extra sparsefed[secure]")

from sparsefed.core.errors import ConfigError
from sparsefed.secure import pine, two_servers
from sparsefed.secure.circuit import Circuit, circuit_for
from sparsefed.secure.field import FIELD32, FIELD64, RejectedReport
from sparsefed.secure.sealing import OVERHEAD, new_key, public_key, seal, shared_secret, unseal
from sparsefed.secure.two_servers import Helper, Leader, RoundTask, decode_task, encode_task, upload
from sparsefed.secure.xof import Xof

D = 12
CIRCUIT = circuit_for(FIELD32, D, 500)
LEADER, HELPER = new_key(), new_key()


def task(round: int = 1, least: int = 2, run: bytes = bytes(16)) -> RoundTask:
    return RoundTask(CIRCUIT, run, round, public_key(LEADER), public_key(HELPER), least)


def vectors(count: int, seed: int = 0) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return list(np.random.default_rng(seed).integers(-100, 101, (count, D)))


def filled(task_: RoundTask, values: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> Leader:
    leader = Leader(task_, LEADER)
    for sender, vector in enumerate(values):
        assert leader.receive(sender, upload(task_, sender, vector)) is None
    return leader


def test_the_sum_is_exact_and_names_who_is_in_it() -> None:
    values = vectors(5)
    leader = filled(task(), values)
    outcome = leader.finish(Helper(HELPER).answer(task(), leader.request()))
    assert outcome.total is not None and outcome.total.tolist() == sum(values).tolist()  # type: ignore[union-attr]
    assert outcome.accepted == (0, 1, 2, 3, 4) and outcome.rejected == {} and outcome.problem == ""


def test_clients_that_vanish_cost_nothing() -> None:
    """Whoever sends nothing, or half a report, is not in the sum; the others are."""
    values = vectors(3)
    leader = filled(task(), values)
    assert "cut off" in (leader.receive(7, upload(task(), 7, values[0])[:1000]) or "")
    outcome = leader.finish(Helper(HELPER).answer(task(), leader.request()))
    assert outcome.total is not None and outcome.total.tolist() == sum(values).tolist()  # type: ignore[union-attr]
    assert list(outcome.rejected) == [7]


def test_a_helper_that_dies_ends_the_round_with_a_sentence() -> None:
    outcome = filled(task(), vectors(3)).finish(None)
    assert outcome.total is None and outcome.accepted == () and "did not answer" in outcome.problem


def test_one_report_a_sender_and_a_second_try_after_a_bad_one() -> None:
    leader, values = Leader(task(), LEADER), vectors(2)
    assert leader.receive(0, b"nonsense") is not None
    assert leader.rejected.keys() == {0}
    assert leader.receive(0, upload(task(), 0, values[0])) is None
    assert leader.rejected == {}
    assert "already" in (leader.receive(0, upload(task(), 0, values[1])) or "")


def test_replays_are_refused_within_a_round_across_rounds_and_by_the_helper() -> None:
    nonces: set[bytes] = set()
    first, helper, values = Leader(task(1), LEADER, nonces), Helper(HELPER), vectors(3)
    reports = [upload(task(1), sender, vector) for sender, vector in enumerate(values)]
    for sender, report in enumerate(reports):
        assert first.receive(sender, report) is None
    assert "replay" in (first.receive(9, reports[0]) or "")
    assert first.finish(helper.answer(task(1), first.request())).total is not None
    assert "replay" in (Leader(task(2), LEADER, nonces).receive(0, reports[0]) or "")
    forgetful = Leader(task(1), LEADER)  # a leader that lost its memory, in the same round
    for sender, report in enumerate(reports):
        assert forgetful.receive(sender, report) is None
    assert "summed up already" in forgetful.finish(helper.answer(task(1), forgetful.request())).problem


def test_a_report_of_another_round_sender_or_run_cannot_be_opened() -> None:
    values = vectors(3)
    for other, sender in ((task(2), 0), (task(1), 5), (task(1, run=b"x" * 16), 0)):
        leader = filled(task(1), values[1:])  # senders 0 and 1
        assert leader.receive(8, upload(other, sender, values[0])) is None  # the leader cannot see it
        outcome = leader.finish(Helper(HELPER).answer(task(1), leader.request()))
        assert outcome.accepted == (0, 1) and "cannot use its share" in outcome.rejected[8]
        assert outcome.total is not None and outcome.total.tolist() == (values[1] + values[2]).tolist()


@pytest.mark.parametrize("place", range(4))
def test_a_device_that_lies_about_a_hash_is_left_out_by_both_servers(place: int) -> None:
    """Else one of them would count its share and the other would not, and the sum would be noise."""
    values, leader = vectors(3), filled(task(), vectors(3))
    report = pine.shard(CIRCUIT, values[0], pine.fresh_nonce())
    parts = [*report.public.wr_parts, *report.public.joint_parts]
    parts[place] = bytes(32)
    lying = report._replace(public=pine.PublicShare((parts[0], parts[1]), (parts[2], parts[3])))
    assert leader.receive(9, two_servers.sealed_report(task(), 9, lying)) is None
    outcome = leader.finish(Helper(HELPER).answer(task(), leader.request()))
    assert "hash" in outcome.rejected[9] and outcome.accepted == (0, 1, 2)
    assert outcome.total is not None and outcome.total.tolist() == sum(values).tolist()  # type: ignore[union-attr]


def test_the_helper_sums_up_once_and_never_too_few() -> None:
    helper, values = Helper(HELPER), vectors(3)
    lonely = filled(task(1, least=3), values[:2])
    assert "fewer than the 3" in lonely.finish(helper.answer(task(1, least=3), lonely.request())).problem
    leader = filled(task(2, least=3), values)
    leader._waiting[0] = leader._waiting[0]._replace(sealed=bytes(OVERHEAD + 128))  # so that only two are valid
    assert "only 2 reports are valid" in leader.finish(helper.answer(task(2, least=3), leader.request())).problem


def test_the_helper_remembers_after_a_restart() -> None:
    helper, leader = Helper(HELPER), filled(task(), vectors(3))
    request = leader.request()
    assert leader.finish(helper.answer(task(), request)).total is not None
    again = Helper.load(HELPER, json.loads(json.dumps(helper.save())))
    assert again.nonces == helper.nonces and len(again.nonces) == 3
    assert "summed up already" in leader.finish(again.answer(task(), request)).problem


def test_the_helper_works_for_its_leader_and_under_its_own_key() -> None:
    leader = filled(task(), vectors(3))
    for helper in (Helper(HELPER, leader=public_key(new_key())), Helper(new_key())):
        assert "another helper, or from a leader" in leader.finish(helper.answer(task(), leader.request())).problem
    assert leader.finish(Helper(HELPER, leader=public_key(LEADER)).answer(task(), leader.request())).total is not None


@given(data=st.binary(max_size=300), place=st.integers(0, 10**6), value=st.integers(1, 255))
@settings(max_examples=40)
def test_nothing_that_is_received_raises(data: bytes, place: int, value: int) -> None:
    leader, helper = filled(task(), vectors(2)), Helper(HELPER)
    assert leader.receive(5, data) is not None
    request = leader.request()
    changed = bytearray(request)
    changed[place % len(request)] ^= value
    for message in (data, bytes(changed)):
        answer = helper.answer(task(), message)
        assert isinstance(answer, bytes)
        assert leader.finish(answer).total is None or leader.finish(answer).accepted
    for message in (data, request):
        assert leader.finish(message).total is None
    with pytest.raises(RejectedReport):
        decode_task(data)


def test_a_task_travels_as_json() -> None:
    for circuit in (CIRCUIT, circuit_for(FIELD64, 1000, 10**6)):
        given_ = RoundTask(circuit, secrets.token_bytes(16), 3, public_key(LEADER), public_key(HELPER), 4)
        assert decode_task(encode_task(given_)) == given_
    table = json.loads(encode_task(task()))
    for key, wrong in (("d", 0), ("d", 2**40), ("bound", 10**9), ("field", "field16"), ("run", "00"), ("least", 0)):
        with pytest.raises(RejectedReport, match="cannot be read"):
            decode_task(json.dumps({**table, key: wrong}).encode())
    with pytest.raises(RejectedReport, match="cannot be read"):
        decode_task(json.dumps({**table, "helper_key": table["leader_key"]}).encode())
    with pytest.raises(ConfigError, match="circuit_for"):
        encode_task(RoundTask(Circuit(FIELD32, 3, 5, 9, 2, 1, 1), bytes(16), 1, public_key(LEADER), public_key(HELPER)))


def test_sealing() -> None:
    sealed = seal(b"secret", public_key(HELPER), b"here")
    assert len(sealed) == len(b"secret") + OVERHEAD and b"secret" not in sealed
    assert unseal(sealed, HELPER, b"here") == b"secret"
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for data, key, context in (
        (sealed, LEADER, b"here"),
        (sealed, HELPER, b"there"),
        (changed, HELPER, b"here"),
        (bytes(80), HELPER, b"here"),  # a public key of low order
        (b"", HELPER, b"here"),
    ):
        with pytest.raises(RejectedReport, match="sealed share"):
            unseal(data, key, context)
    one = shared_secret(LEADER, public_key(HELPER), b"round 1")
    assert one == shared_secret(HELPER, public_key(LEADER), b"round 1") and len(one) == 32
    assert one != shared_secret(LEADER, public_key(HELPER), b"round 2")


# --- what a server sees ---


def views(values: list[int], count: int, seed: int, same_seed: bool) -> dict[str, list[list[int]]]:
    """All that each server sees of some reports of one vector, as field elements: shares, and both servers' answers."""
    circuit = Circuit(FIELD32, 4, 100, 24, 2, 1, 1, checks=3, successes=3)
    draw, seen = np.random.default_rng(seed), {"leader": [], "helper": [], "answers": []}  # type: ignore[var-annotated]
    fixed = draw.bytes(32)
    for _ in range(count):
        nonce, key, random = draw.bytes(16), draw.bytes(32), draw.bytes(224)
        random = fixed + random[32:] if same_seed else random
        report = pine.shard(circuit, np.array(values), nonce, random)
        both = [
            pine.prepare(circuit, key, server, nonce, report.public, (report.leader, report.helper)[server])
            for server in (0, 1)
        ]
        seen["leader"].append([*report.leader.measurement.tolist(), *report.leader.proofs.tolist()])
        seen["helper"].append(both[1][0].out_share.tolist() + both[0][1].answers.tolist())
        seen["answers"].append(FIELD32.add(both[0][1].answers, both[1][1].answers).tolist())
    return seen


def tells_apart(one: list[list[int]], other: list[list[int]]) -> bool:
    """Whether some number that a server sees is distributed differently: Kolmogorov-Smirnov, corrected for the many."""
    from scipy.stats import ks_2samp

    a, b = np.array(one, np.float64), np.array(other, np.float64)
    smallest = min(ks_2samp(a[:, k], b[:, k]).pvalue for k in range(a.shape[1]))
    return bool(smallest < 1e-4 / a.shape[1])


ZERO, LONG = [0, 0, 0, 0], [60, -80, 0, 0]


@pytest.mark.slow
def test_neither_server_can_tell_two_updates_apart() -> None:
    first, second = views(ZERO, 150, 1, False), views(LONG, 150, 2, False)
    assert [place for place in first if tells_apart(first[place], second[place])] == []


def test_the_test_of_secrecy_has_teeth_shares_from_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that uses the same seed again shifts the leader's share by the vector."""
    del monkeypatch
    first, second = views(ZERO, 60, 1, True), views(LONG, 60, 1, True)
    assert tells_apart(first["leader"], second["leader"])


def test_the_test_of_secrecy_has_teeth_wires_without_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without random seeds the answers are values of polynomials that depend on the vector alone."""

    class Unblinded(Xof):
        def __init__(self, seed: bytes, dst: bytes, *binder: object) -> None:
            super().__init__(seed, dst, *binder)
            self.blind = int.from_bytes(dst[-2:], "big") != pine.PROVE

        def vector(self, field, count):  # type: ignore[no-untyped-def]
            return super().vector(field, count) if self.blind else field.zeros(count)

    monkeypatch.setattr(pine, "Xof", Unblinded)
    first, second = views(ZERO, 60, 1, False), views(LONG, 60, 2, False)
    assert tells_apart(first["answers"], second["answers"])


def test_a_round_of_two_is_the_least_by_default() -> None:
    assert task().least == 2
    with pytest.raises(ConfigError, match="16 bytes"):
        two_servers.RoundTask(CIRCUIT, b"short", 1, public_key(LEADER), public_key(HELPER))
