"""Text: tokens to sequences, what padding must not change, models that do not look ahead, runs and attacks on it."""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.perplexity import unigram
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed import config as configs
from sparsefed import data
from sparsefed.attacks import ATTACKS, Scene, attack_info
from sparsefed.attacks.continuation import continuation
from sparsefed.core.engine import LocalStep
from sparsefed.core.errors import ConfigError, DataError
from sparsefed.core.rng import rng
from sparsefed.core.task import Evaluation, evaluator, make_task
from sparsefed.core.types import IGNORED, Arrays
from sparsefed.data.formats import jsonl as comments
from sparsefed.data.formats import leaf_text, tokens
from sparsefed.data.record import Content, DataFile, DataSet
from sparsefed.data.sets import reddit, shakespeare
from sparsefed.data.sources import paths as places
from sparsefed.engines import fused, loop
from sparsefed.models import lstm, transformer
from sparsefed.reports import charts, html, summary
from tests.support.cohorts import assert_same, by_client, cohort_of, seeded
from tests.support.records import record

# --- a language of ten words: after word i comes word i + 1 or i + 2 -------------------------------------------------

WORDS = tuple(f"w{i}" for i in range(10))


def walk(text: int) -> list[str]:
    draw = rng(3, "language", text)
    steps = np.cumsum(draw.integers(1, 3, 8 + text % 7)) + draw.integers(10)
    return [WORDS[i % 10] for i in steps]


def tiny(_: Content) -> Arrays:
    texts = {f"{user:03}": [walk(100 * user + i) for i in range(10)] for user in range(30)}
    return tokens.arrays("tiny-text", *tokens.held_out(texts), size=14, length=6)


TINY = DataSet("tiny-text", "for tests", tiny, carried_by="the tests")
RUN: dict[str, Any] = {
    "seed": 2,
    "rounds": 60,
    "evaluate_every": 60,
    "data": {"name": "tests.unit.test_text:TINY", "partition": "by_user"},
    "model": {"name": "lstm", "width": 16, "hidden": 16},
    "train": {"cohort": 10, "lr": 2.0, "weight_decay": 0.0},
}


def built(**changed: Any) -> configs.BuiltSimulation:
    return configs.build(configs.parse({**RUN, **changed}))


def ended(experiment: configs.BuiltSimulation) -> dict[str, Any]:
    *_, last = experiment.reports(experiment.begin())
    return dict(last.metrics)


# --- tokens ----------------------------------------------------------------------------------------------------------

texts_of_users = st.dictionaries(
    st.sampled_from(["ann", "bob", "eve"]), st.lists(st.lists(st.sampled_from("abcde"), max_size=7), max_size=4)
)


@settings(max_examples=60, deadline=None)
@given(texts=texts_of_users, length=st.integers(1, 5))
def test_sequences_are_the_text_one_token_apart(texts: dict[str, list[list[str]]], length: int) -> None:
    """Against the definition, text by text: <bos> first, <eos> last, cut, filled, and no pair lost."""
    known = (*tokens.SPECIAL, "a", "b", "c")
    number = {token: i for i, token in enumerate(known)}
    x: list[list[int]] = []
    y: list[list[int]] = []
    users = []
    for user, name in enumerate(sorted(texts)):
        for text in texts[name]:
            coded = [number.get(token, 1) for token in text]
            before, after = [2, *coded], [*coded, 3]
            while before:
                x.append((before[:length] + [0] * length)[:length])
                y.append((after[:length] + [IGNORED] * length)[:length])
                users.append(user)
                before, after = before[length:], after[length:]
    found = tokens.pairs(texts, known, length)
    assert found.x.dtype == np.int32 and found.y.dtype == np.int64
    assert found.x.shape == found.y.shape == (len(x), length)
    assert (found.x.tolist(), found.y.tolist(), found.users.tolist()) == (x, y, users)


def test_the_vocabulary_knows_the_training_part_only() -> None:
    texts = {"a": [["x", "y"]] * 9 + [["z", "x"]], "b": [["q"]] * 9}
    train, test = tokens.held_out(texts)
    assert (len(train["a"]), len(test["a"]), len(train["b"]), len(test["b"])) == (9, 1, 9, 0)
    arrays = tokens.arrays("t", train, test, size=100, length=3)
    assert arrays.classes == (*tokens.SPECIAL, "q", "x", "y")
    assert arrays.x_test.tolist() == [[2, 1, 5]]  # z is <unk>
    assert arrays.y_test.tolist() == [[1, 5, 3]]
    assert arrays.is_text and arrays.users is not None and arrays.users.tolist() == [0] * 9 + [1] * 9


def test_a_word_that_looks_like_a_special_token_is_none() -> None:
    assert tokens.words("<pad> <eos>") == ["<", "pad", ">", "<", "eos", ">"]
    found = tokens.pairs({"a": [["<pad>", "<eos>"]]}, (*tokens.SPECIAL, "x"), 3)
    assert found.y.tolist() == [[1, 1, 3]]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where data are looked for, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARSEFED_DATA", str(tmp_path))
    return tmp_path


LINES = b"".join(json.dumps({"user": i // 10, "text": f"Comment {i}, isn't it?"}).encode() + b"\n" for i in range(40))
SMALL = DataSet(
    "small",
    "for tests",
    lambda content: tokens.arrays(
        "small", *tokens.held_out(comments.parse(content("small.jsonl"), tokens.words, "small.jsonl")), 50, 4
    ),
    files=(DataFile("small.jsonl", len(LINES), hashlib.sha256(LINES).hexdigest()),),
    by_hand="Write it anew",
)


def test_xz_is_read_as_it_is_and_stays_so(home: Path) -> None:
    (home / "small.jsonl.xz").write_bytes(lzma.compress(LINES))
    arrays = data.load(SMALL)
    assert (data.status(SMALL).state, data.check(SMALL).state) == ("found", "found")
    assert len(np.unique(arrays.users if arrays.users is not None else [])) == 4
    assert sorted(path.name for path in home.rglob("*") if path.is_file()) == ["small.jsonl.xz"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (lzma.compress(LINES)[:-40], "cut short"),
        (lzma.compress(LINES)[:100] + b"\0" * 20 + lzma.compress(LINES)[120:], "is damaged: its xz data"),
        (lzma.compress(LINES[:-1]), "cut short"),
        (lzma.compress(LINES + b"{}"), "is longer"),
        (lzma.compress(LINES.replace(b"Comment 7", b"Comment 8")), "other content"),
        (b"", "cut short"),
    ],
    ids=["truncated", "corrupt", "shorter", "longer", "another version", "empty"],
)
def test_damaged_xz_is_one_sentence(home: Path, raw: bytes, says: str) -> None:
    (home / "small.jsonl.xz").write_bytes(raw)
    with pytest.raises(DataError, match=says) as caught:
        data.load(SMALL)
    assert "Write it anew." in str(caught.value) and "fetch" not in str(caught.value)
    assert data.check(SMALL).state == "damaged"


def test_a_cut_xz_is_seen_at_a_glance(home: Path) -> None:
    (home / "small.jsonl.xz").write_bytes(lzma.compress(LINES)[:-1])
    assert data.status(SMALL).state == "damaged"


def test_missing_text_says_what_to_do(home: Path) -> None:
    for which in (SMALL, "reddit", "shakespeare", "reddit_leaf", "shakespeare_leaf"):
        assert data.status(which).state == data.check(which).state == "missing"
        with pytest.raises(DataError, match=r"on this machine: .* was looked for in") as caught:
            data.load(which)
        assert str(home) in str(caught.value) and data.named(which).by_hand in str(caught.value)
        with pytest.raises(DataError):
            data.fetch(which)


@pytest.mark.parametrize("line", [b"[]", b"{", b'{"user": 1}', b'{"user": 1, "text": 2}', b'{"user": [], "text": "a"}'])
def test_a_bad_line_is_named(line: bytes) -> None:
    content = np.frombuffer(b'{"user": 1, "text": "a"}\n' + line, np.uint8)
    with pytest.raises(DataError, match="line 2 of some"):
        comments.parse(content, tokens.words, "some")


def leaf(users: dict[str, dict[str, Any]]) -> str:
    counts = [99 for _ in users]  # for Reddit, LEAF counts the comments before it splits them
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": users})


def put_leaf(folder: Path, train: str, test: str) -> None:
    for part, text in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True)
        (folder / part / f"some_{part}.json").write_text(text)


def leaf_comment(words: str, length: int = 10) -> tuple[list[list[str]], dict[str, Any]]:
    """A comment as LEAF's script writes it: one pair more than ours, <EOS> and <PAD>."""
    x, y = ["<BOS>", *words.split(), "<EOS>"], [*words.split(), "<EOS>", "<PAD>"]
    fill = ["<PAD>"] * (-len(x) % length)
    cut = range(0, len(x) + len(fill), length)
    target = [(y + fill)[i : i + length] for i in cut]
    return [(x + fill)[i : i + length] for i in cut], {"subreddit": "a", "score": 1, "target_tokens": target}


def test_reddit_as_leaf_writes_it(home: Path) -> None:
    """Nine words fill a sequence with <bos> and <eos> out; LEAF has a second one with nothing to predict."""
    nine, three = leaf_comment("a b c d e f g h i"), leaf_comment("a b ?")
    users = {"7": {"x": [nine[0], three[0]], "y": [nine[1], three[1]]}}
    put_leaf(home / "reddit_leaf", leaf(users), leaf({"7": {"x": [three[0]], "y": [three[1]]}}))
    assert data.check("reddit_leaf").state == "found"
    assert data.fetch("reddit_leaf").state == "found"
    arrays = data.load("reddit_leaf")
    spoken = [[arrays.classes[i] for i in row if i != IGNORED] for row in arrays.y_train]
    assert spoken == [[*"abcdefghi", "<eos>"], ["a", "b", "?", "<eos>"]]
    assert arrays.x_train.shape == (2, 10) and len(arrays.x_test) == 1


def test_shakespeare_as_leaf_writes_it(home: Path) -> None:
    text = "To be, or not to be: that is the question." * 3
    x, y = [text[i : i + 80] for i in range(len(text) - 80)], list(text[80:])
    put_leaf(home / "shakespeare_leaf", *[leaf({"HAMLET": {"x": x, "y": y}})] * 2)
    arrays = data.load("shakespeare_leaf")
    assert "".join(arrays.classes[i] for i in arrays.y_train.flatten() if i > tokens.EOS) == text


@pytest.mark.parametrize(
    "text", ["", leaf({})[:20], "[]", '{"users": []}', '{"user_data": {"a": 3}}', '{"user_data": {"a": {"x": []}}}']
)
def test_a_bad_leaf_file_is_named(home: Path, text: str) -> None:
    put_leaf(home / "reddit_leaf", text, leaf({}))
    with pytest.raises(DataError, match=r"some_train\.json, .* (no JSON|no file of LEAF's|damaged).*LEAF's scripts"):
        data.load("reddit_leaf")
    assert data.check("reddit_leaf").state == "damaged"


def test_windows_that_do_not_follow_each_other_are_texts_of_their_own() -> None:
    assert leaf_text.windows([], []) == []
    with pytest.raises(ValueError):
        leaf_text.windows(["ab"], [])


@pytest.mark.slow
@pytest.mark.parametrize("record", [reddit.DATASET, shakespeare.DATASET], ids=lambda record: record.name)
def test_the_real_text(record: DataSet) -> None:
    if not places.find(record, record.files[0], places.roots()):
        pytest.skip(f"{record.files[0].name} is not here; set SPARSEFED_DATA to the folder that has it")
    arrays = data.load(record)
    shapes = {"reddit": ((111_467, 10), (7249, 10), 10_000, 3203), "shakespeare": ((15_103, 80), (1629, 80), 69, 299)}
    users = len(np.unique(arrays.users if arrays.users is not None else []))
    assert (arrays.x_train.shape, arrays.x_test.shape, len(arrays.classes), users) == shapes[record.name]
    assert int(arrays.x_train.max()) < len(arrays.classes)
    assert bool(((arrays.x_train == tokens.PAD) == (arrays.y_train == IGNORED)).all())
    assert 400 < unigram(arrays) < 600 if record.name == "reddit" else 20 < unigram(arrays) < 30


# --- padding ---------------------------------------------------------------------------------------------------------


def some(count: int, length: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Scores, and targets with holes, the first example nothing but holes."""
    draw = rng(seed, "scores")
    y = torch.from_numpy(draw.integers(classes, size=(count, length)))
    y[torch.from_numpy(draw.random((count, length)) < 0.4)] = IGNORED
    y[0] = IGNORED
    return torch.from_numpy(draw.normal(size=(count, length, classes)).astype(np.float32)), y


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 5), length=st.integers(1, 6), classes=st.integers(2, 7), seed=st.integers(0, 99))
def test_padding_counts_in_no_loss_and_no_accuracy(count: int, length: int, classes: int, seed: int) -> None:
    scores, y = some(count, length, classes, seed)
    scores.requires_grad_(True)
    losses = make_task(nn.Linear(1, 1)).losses(scores, y)
    right, told, entropies = 0, 0, []
    for i in range(count):
        own = [-float(scores[i, t].detach().log_softmax(0)[y[i, t]]) for t in range(length) if y[i, t] != IGNORED]
        entropies += own
        assert float(losses[i].detach()) == pytest.approx(sum(own) / len(own) if own else 0.0, abs=1e-5)
        for t in range(length):
            if y[i, t] != IGNORED:
                told += 1
                right += int(scores[i, t].argmax() == y[i, t])
    (gradient,) = torch.autograd.grad(losses.mean(), scores)
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient[y == IGNORED].abs().sum()) == 0
    accuracy = Evaluation(0.0, scores.argmax(-1)).accuracy(y)
    assert math.isnan(accuracy) if told == 0 else accuracy == pytest.approx(right / told)

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return scores.detach()[x[:, 0]] * self.scale

    task = make_task(Given())
    found = evaluator(task, torch.float32, batch=2)(task.initial(), torch.arange(count)[:, None], y)
    assert found.loss == pytest.approx(sum(entropies) / max(1, len(entropies)), abs=1e-5)  # every token alike


# --- models ----------------------------------------------------------------------------------------------------------


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts() -> None:
    """The formulas of the modules' docstrings, and the numbers they give."""
    assert count(lstm((10,), 10_000)) == 889_680
    assert count(lstm((10,), 10_000, tied=False)) == 640_000 + 99_328 + 132_096 + 1_290_000
    assert count(transformer((10,), 10_000)) == 750_736
    for V, E, H, layers in ((11, 6, 4, 1), (7, 5, 5, 3)):
        core = V * E + 4 * H * (E + H + 2) + (layers - 1) * 4 * H * (2 * H + 2)
        tied = V + (E * (H + 1) if H != E else 0)
        assert count(lstm((3,), V, width=E, hidden=H, layers=layers)) == core + tied
        assert count(lstm((3,), V, width=E, hidden=H, layers=layers, tied=False)) == core + V * H + V
    V, T, W, L = 9, 5, 8, 3
    assert (
        count(transformer((T,), V, width=W, heads=2, layers=L)) == V * W + T * W + L * (12 * W**2 + 13 * W) + 2 * W + V
    )


SMALL_MODELS = {
    "lstm": lambda: lstm((5,), 9, width=4, hidden=6),
    "lstm, not tied": lambda: lstm((5,), 9, width=4, hidden=4, tied=False),
    "transformer": lambda: transformer((5,), 9, width=8, heads=2),
}


@pytest.mark.parametrize("build", SMALL_MODELS.values(), ids=SMALL_MODELS.keys())
def test_nobody_looks_ahead(build: Any) -> None:
    module = seeded(build)
    before = torch.tensor([[1, 2, 3, 4, 5]])
    for t in range(5):
        after = before.clone()
        after[0, t] = 8
        changed = (module(after) - module(before)).abs().sum(-1)[0] > 1e-7
        assert changed.tolist() == [i >= t for i in range(5)]


def test_models_for_text_say_so() -> None:
    for build in (lstm, transformer):
        with pytest.raises(ValueError, match="sequences of tokens"):
            build((1, 8, 8), 10)
    with pytest.raises(ValueError, match="3 heads"):
        transformer((5,), 9, width=8, heads=3)


def token_cohort(sizes: list[int]) -> Any:
    draw = rng(1, "tokens")
    x = torch.from_numpy(draw.integers(9, size=(sum(sizes), 5)).astype(np.int32))
    y = torch.from_numpy(draw.integers(9, size=(sum(sizes), 5)))
    y[:, 3:] = IGNORED
    y[0] = IGNORED
    return cohort_of(x, y, sizes)


def test_the_transformer_is_fused() -> None:
    assert_same(make_task(seeded(SMALL_MODELS["transformer"])), token_cohort([3, 1, 3, 2]), LocalStep(0.1, 5e-4))


def test_the_lstm_falls_back_to_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """And the loop is right: a client's update is the gradient of the mean over its sequences, by plain autograd."""
    module = seeded(SMALL_MODELS["lstm"])
    task, cohort = make_task(module), token_cohort([2, 3])
    with caplog.at_level(logging.WARNING):
        engine = fused(task)
    assert "client by client" in caplog.text and "LSTM" in caplog.text
    rows, _ = by_client(engine, task.initial(), cohort, LocalStep(0.5, 0.0))
    assert torch.equal(rows, by_client(loop(task), task.initial(), cohort, LocalStep(0.5, 0.0))[0])
    for client, own in enumerate((slice(0, 2), slice(2, 5))):
        batch = cohort.gather(np.arange(2))
        losses = []
        for tokens_in, wanted in zip(batch.x[own], batch.y[own], strict=True):
            scores, kept = module(tokens_in[None])[0], wanted != IGNORED
            losses.append(
                nn.functional.cross_entropy(scores[kept], wanted[kept]) if bool(kept.any()) else 0 * scores.sum()
            )
        module.zero_grad()
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        truth = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(rows[client], 0.5 * truth, rtol=1e-4, atol=1e-6)


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "lr"),
    [(RUN["model"], 2.0), ({"name": "transformer", "width": 16, "heads": 2}, 0.5)],
    ids=["lstm", "other"],
)
@pytest.mark.slow
def test_a_run_on_text_learns_more_than_how_frequent_words_are(model: dict[str, Any], lr: float) -> None:
    found = ended(built(model=model, train={**RUN["train"], "lr": lr}))
    assert found["test_perplexity"] == pytest.approx(math.exp(found["test_loss"]))
    assert found["test_perplexity"] < 0.5 * unigram(data.load(TINY))  # two equally likely words against ten
    assert found["test_accuracy"] > 0.3


def test_a_run_on_text_may_be_judged_by_its_perplexity() -> None:
    experiment = built(train={**RUN["train"], "metric": "perplexity"})
    found, y = ended(experiment), data.load(TINY).y_test
    tokens_seen = y[y != IGNORED]
    shares = np.bincount(tokens_seen)[np.unique(tokens_seen)] / len(tokens_seen)
    assert found["test_explained"] == pytest.approx(1 - found["test_loss"] / -float(shares @ np.log(shares)))
    assert experiment.facts["score"] == "test_explained" and experiment.facts["chance"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [RUN["model"], {"name": "transformer", "width": 8, "heads": 2}], ids=lambda m: m["name"]
)
@pytest.mark.parametrize("engine", ["fused", "by_client"])
def test_devices_may_take_several_steps_on_text(model: dict[str, Any], engine: str) -> None:
    several = {"mode": "fedavg", "local_epochs": 2, "local_batch": 7, "engine": engine}
    found = ended(built(rounds=2, model=model, train={**RUN["train"], "lr": 0.1, **several}))
    assert math.isfinite(found["test_loss"]) and found["honest_norm"] > 0


def test_everyone_has_their_own_device_and_the_vocabulary_is_a_parameter() -> None:
    assert built().setup.federation.device_count == 30
    resized = configs.parse({"data": {"name": "reddit", "partition": "by_user", "vocabulary": 500, "length": 7}})
    assert configs.dataset(resized) is configs.dataset(resized) is not reddit.DATASET  # so it is loaded once
    assert configs.dataset(configs.parse({"data": {"name": "reddit"}})) is reddit.DATASET


def test_the_size_that_is_asked_for_is_the_size_that_comes(home: Path) -> None:
    put_leaf(home / "reddit_leaf", *[leaf({"1": {"x": [leaf_comment("a a b b c")[0]], "y": [{}]}})] * 2)
    assert reddit.LEAF.resized is not None
    arrays = data.load(reddit.LEAF.resized(6, 2))
    assert arrays.classes == (*tokens.SPECIAL, "a", "b") and arrays.x_train.shape == (3, 2)


@pytest.mark.parametrize("given", [0, -1, True, 2.5, "7", 10**18, float("nan")])
def test_a_size_that_cannot_be_is_refused_not_taken_for_none(given: Any) -> None:
    assert reddit.DATASET.resized is not None
    with pytest.raises(ConfigError, match=r"vocabulary is .*; give a whole number from 5 to"):
        reddit.DATASET.resized(given, None)
    with pytest.raises(ConfigError, match=r"length is .*; give a whole number from 1 to"):
        reddit.DATASET.resized(None, given)
    with pytest.raises(ConfigError, match="length is"):
        data.shakespeare(length=0)


def test_a_length_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(DataError, match="choose a shorter length"):
        tokens.pairs({"ann": [["so", "it", "goes"]] * 100}, (*tokens.SPECIAL, "so"), 10**7)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": {"name": "cnn"}}, "model cnn is for images, but tiny-text is text; use one of lstm, transformer"),
        ({"data": {"name": "digits"}}, "model lstm is for text, but digits is images; use one of cnn"),
        (
            {"data": {**RUN["data"], "partition": "one_class", "devices": 20}},
            "needs one class for each example.*by_user",
        ),
        ({"data": {**RUN["data"], "augment": "cifar"}}, "augment = 'cifar' is for images, but tiny-text is text"),
        ({"data": {"name": "digits", "vocabulary": 9}}, "are for text, but digits is none"),
        ({"data": {**RUN["data"], "vocabulary": 4}}, "data.vocabulary is 4"),
        ({"model": {"name": "transformer", "width": 10, "heads": 4}}, "width of 10 cannot be shared out among 4 heads"),
    ],
)
def test_what_does_not_fit_text_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        built(**changed)


# --- attacks ---------------------------------------------------------------------------------------------------------

WHO = {"threat": {"per_round": 1, "start": 60, "stop": 60}}
REPLACE = {"name": "replacement_text", "trigger": "w0 w1", "wanted": "w6", "epochs": 60, "step": 0.5, "points": 50}


@pytest.mark.parametrize("name", ["semantic", "replacement", "edge", "badnets", "dba", "neurotoxin"])
def test_goals_that_make_no_sense_for_text_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="text has no classes; use 'replacement_text'"):
        built(**WHO, attack={"name": name})


@pytest.mark.parametrize(
    "attack",
    [{"name": "pgd", "auxiliary": 5, "batch": 5}, {"name": "label_flip", "classes": 14}, {"name": "sign_flip"}],
    ids=lambda attack: attack["name"],
)
def test_attacks_on_labels_work_on_text(attack: dict[str, Any]) -> None:
    experiment = built(rounds=1, attack=attack, threat={"per_round": 2})
    found = ended(experiment)
    assert found["attackers"] == 2 and math.isfinite(found["test_loss"]) and found["attacker_norm"] > 0
    assert ("attack_accuracy" in found) == (attack["name"] == "pgd")


def test_wrong_labels_are_wrong_and_padding_stays_padding() -> None:
    arrays = data.load(TINY)
    x, y, x_test, y_test = map(torch.from_numpy, (arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test))
    goal = attack_info(ATTACKS["pgd"]).goal(Scene(x, y, x_test, y_test, 14, 0, arrays.classes), auxiliary=20)
    assert goal is not None
    right = y_test[goal.positions]
    assert torch.equal(goal.y == IGNORED, right == IGNORED)
    assert bool(((goal.y != right) | (right == IGNORED)).all())
    assert 0 <= int(goal.y[right != IGNORED].min()) <= int(goal.y.max()) < 14


def test_a_phrase_takes_the_end_of_real_sequences() -> None:
    arrays = data.load(TINY)
    x, y, x_test, y_test = map(torch.from_numpy, (arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test))
    scene = Scene(x, y, x_test, y_test, 14, 0, arrays.classes)
    goal = continuation.__wrapped__(scene, trigger="w3 w4", wanted="w8 w1", points=10)
    number = {word: i for i, word in enumerate(arrays.classes)}
    assert goal.x.shape == goal.y.shape == (10, 6)
    assert goal.x[:, 3:].tolist() == [[number[w] for w in ("w3", "w4", "w8")]] * 10
    assert goal.y.tolist() == [[IGNORED] * 4 + [number["w8"], number["w1"]]] * 10
    starts = {tuple(row) for row in x[:, :3].tolist()}
    assert all(tuple(row) in starts for row in goal.x[:, :3].tolist()) and tokens.PAD not in goal.x
    assert len(goal.positions) == 0 and goal.test_x.shape == goal.test_y.shape


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"trigger": "w0 pasta"}, "'pasta', which is not in the vocabulary of 14"),
        ({"wanted": " "}, "a word at least"),
        ({"trigger": "w1 w2 w3 w4 w5 w6 w7"}, "8 tokens, but a sequence of 6 has room for 7"),
        ({"points": 0}, "points is 0"),
    ],
)
def test_an_impossible_phrase_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        built(**WHO, attack={**REPLACE, **changed})


def test_images_have_no_continuation() -> None:
    with pytest.raises(ConfigError, match="wanted of text"):
        built(data={"name": "digits", "devices": 100}, model={"name": "softmax"}, **WHO, attack=REPLACE)


@pytest.mark.slow
def test_model_replacement_bites_on_text() -> None:
    """One attacker, in the last round alone: the mean learns the phrase, and still speaks the language."""
    server = {"mode": "fedavg", "lr": 2.0, "cohort": 10, "weight_decay": 0.0}
    experiment = built(train=server, **WHO, attack=REPLACE)
    *_, clean, last = experiment.reports(experiment.begin())
    before, after = experiment.evaluate(clean.state.theta), last.metrics
    assert (clean.metrics["attackers"], after["attackers"]) == (0, 1)
    assert before["attack_accuracy"] <= 0.2 and after["attack_accuracy"] >= 0.9
    assert before["test_perplexity"] < 0.5 * unigram(data.load(TINY))
    assert after["test_perplexity"] < 0.7 * unigram(data.load(TINY))


def test_model_replacement_on_text_needs_what_it_says() -> None:
    attack = built(**WHO, attack=REPLACE).setup.attack
    assert attack is not None and attack.needs == attack_info(ATTACKS["replacement_text"]).needs == {"own data"}


def test_model_replacement_on_text_keeps_to_its_budget_and_its_seed() -> None:
    where = {"rounds": 1, "threat": {"per_round": 2}, "attack": {**REPLACE, "epochs": 5}}
    defense = {"name": "clipping", "clip_norm": 0.3}
    first, again = (ended(built(**where, defense=defense)) for _ in range(2))
    assert first == again
    assert 0 < first["attacker_norm"] <= 0.3 * (1 + 1e-6)


# --- the report ------------------------------------------------------------------------------------------------------


def test_the_report_shows_perplexity_where_there_is_one() -> None:
    rows = [{"round": t, "test_loss": 6.0, "test_accuracy": 0.1, "test_perplexity": 900.0 / t} for t in (1, 2)]
    runs = [record("words", rows), record("images", [{"round": 1, "test_loss": 1.0, "test_accuracy": 0.5}])]
    assert [row.test_perplexity for row in summary(runs)] == [450.0, None]
    assert "test-perplexity" in charts(runs) and "test-perplexity" not in charts(runs[1:])
    page = html(runs)
    assert "Test perplexity" in page and "words ends at 450" in page
    assert "Test perplexity" not in html(runs[1:])


def test_nothing_to_train_on_is_refused(home: Path) -> None:
    put_leaf(home / "reddit_leaf", leaf({}), leaf({}))
    with pytest.raises(DataError, match="no text to train on"):
        data.load("reddit_leaf")
