"""`sparsefed sweep FILE`: its file against the naive product, its sentences, a whole run, and what it exports."""

from __future__ import annotations

import csv
import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import sparsefed
from sparsefed.commands import sweep as sweeping
from sparsefed.commands.reproduce.exhibit import OWN
from sparsefed.commands.reproduce.grid import combinations, plan
from sparsefed.commands.reproduce.run import ExhibitResult
from sparsefed.commands.sweep import FigureSize, exports
from sparsefed.commands.sweep.exports import to_csv
from sparsefed.core.errors import ConfigError
from sparsefed.sweeps.pool import Pool

CONFIG = """
seed = 5
rounds = 6
evaluate_every = 2
[data]
name = "sparsefed.commands.reproduce.tiny:IMAGES"
devices = 40
[model]
name = "softmax"
[train]
cohort = 10
lr = 0.5
[threat]
share = 0.2
[attack]
name = "pgd"
auxiliary = 10
"""
SWEEP = """
title = "Two rules & two norms"
question = "Which?"
config = "task.toml"
seeds = 2
twins = true
[axes.defense]
Clipping = { defense = { name = "clipping" } }
SparseFed = { defense = { name = "sparsefed", k = "10%" } }
[grid]
"defense.clip_norm" = [0.5, 5]
[search]
trials = 2
[[claims]]
text = "low"
metric = "attack_accuracy"
below = 2.0
"""


def written(folder: Path, text: str = SWEEP, config: str = CONFIG) -> Path:
    (folder / "task.toml").write_text(config)
    (folder / "mine.toml").write_text(text)
    return folder / "mine.toml"


def test_every_combination_is_the_product_of_axes_and_grid(tmp_path: Path) -> None:
    exhibit = sweeping.load_sweep(written(tmp_path))
    every = combinations(exhibit, OWN)
    wanted = list(itertools.product(("Clipping", "SparseFed"), ("0.5", "5")))
    assert [tuple(each.values.values()) for each in every] == wanted
    for each, (rule, norm) in zip(every, wanted, strict=True):
        config = each.result(5).config
        assert config.defense.name == rule.lower() and config.defense.params["clip_norm"] == float(norm)
        assert config.rounds == 6 and config.attack is not None and list(each.variants) == ["as given", "variant 2"]
    groups = plan(exhibit, OWN).sweep.groups
    seeds = {slot.seed for group in groups for slot in group.outcomes("as given")}
    assert seeds == {5, 6}, "as many as asked for, from the config's on"
    assert {slot.seed for group in groups for slot in group.trials} == {1000}


def test_a_dry_run_counts(tmp_path: Path) -> None:
    sentence = sweeping.described(sweeping.load_sweep(written(tmp_path)))
    assert "4 combinations of defense (2), defense.clip_norm (2), 8 runs to search" in sentence
    assert "16 runs with seeds and twins" in sentence


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('config = "task.toml"', 'config = "gone.toml"', "there is no config file"),
        ("seeds = 2", "seeds = 0", "seeds"),
        ("seeds = 2", "seeds = [1, 1]", "must differ"),
        ("[0.5, 5]", "[]", "clip_norm"),
        ("[0.5, 5]", "[0.5, 0.5]", "must differ"),
        ('"defense.clip_norm" =', "seed =", "seeds = 3"),
        ('"defense.clip_norm" =', '"defense.clip_nrom" =', "clip_norm"),
        ("trials = 2", "trials = 1", "trials"),
        ("trials = 2", "seed = 1", "either `trials`"),
        ('metric = "attack_accuracy"', 'metric = "atack_accuracy"', "attack_accuracy"),
        ("twins = true", "twinz = true", "no key twinz"),
        ("below = 2.0", 'lower = { defense = "Krum" }', "Krum"),
        ("[grid]", "[grid]\n[", "not a sweep's file in TOML"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_file(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert SWEEP.count(old) == 1
    with pytest.raises(ConfigError, match=re.escape(sentence)) as raised:
        sweeping.load_sweep(written(tmp_path, SWEEP.replace(old, new)))
    assert "\n" not in str(raised.value)


def test_nothing_varied_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is varied"):
        sweeping.load_sweep(written(tmp_path, 'config = "task.toml"'))
    with pytest.raises(ConfigError, match=r"docs/sweep\.md"):
        sweeping.load_sweep(tmp_path / "gone.toml")


def test_trials_are_for_one_attack(tmp_path: Path) -> None:
    two = SWEEP.replace(
        "[grid]",
        '[axes.attack]\na = { attack = { name = "pgd", auxiliary = 9 } }\nb = { attack = { name = "drift" } }\n[grid]',
    )
    with pytest.raises(ConfigError, match=r"several \(drift, pgd\)"):
        sweeping.load_sweep(written(tmp_path, two))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExhibitResult]:
    folder = tmp_path_factory.mktemp("swept")
    return folder, sparsefed.sweep_file(written(folder), folder=folder / "out", jobs=1)


@pytest.mark.process
@pytest.mark.slow
def test_a_sweep_is_run_once_judged_and_shown(
    swept: tuple[Path, ExhibitResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, result = swept
    records = result.records()
    assert len(records) == 8 and {each["seed"] for each in records} == {5, 6} and result.problem is None
    assert all(each["status"] == "done" and "lost" in each for each in records)
    assert [each.verdict for each in result.judged] == ["holds"]
    assert (folder / "out" / "mine.jsonl").exists()
    page = result.to_html()
    assert (
        "What the paper says" not in page and "The claims of the file" in page and "Scale" not in result.to_markdown()
    )
    assert f"sparsefed sweep {folder / 'mine.toml'}" in page and "Two rules &amp; two norms" in page
    monkeypatch.setattr(Pool, "start", None)  # whatever is run again fails
    assert sparsefed.sweep_file(folder / "mine.toml", folder=folder / "out").rows == result.rows


@pytest.mark.process
@pytest.mark.slow
def test_its_numbers_come_as_csv_latex_and_figures(swept: tuple[Path, ExhibitResult], tmp_path: Path) -> None:
    result = swept[1]
    files = exports(result, csv=True, latex=True, figures=["svg", "pdf"], size=FigureSize(4.0, 2.5, 9.0))
    lines = list(csv.DictReader(files["mine.csv"].decode().splitlines()))
    assert [float(line["test_accuracy"]) for line in lines] == [each["test_accuracy"] for each in result.records()]
    text = files["mine.tex"].decode()
    assert text.count(r"\\") == 1 + 4 and r"\begin{tabular}{lll" in text and r"$\pm$" in text
    assert "defense.clip\\_norm" in text and "%" not in text.replace(r"\%", "").partition("\n")[2]
    if latex := shutil.which("pdflatex"):
        document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{text}\end{{document}}"
        (tmp_path / "a.tex").write_text(document)
        subprocess.run([latex, "-interaction=nonstopmode", "-halt-on-error", "a.tex"], cwd=tmp_path, check=True)
    drawn = files["mine-attack-accuracy.svg"].decode()
    width, height = (float(re.search(rf'<svg[^>]*\b{side}="([\d.]+)"', drawn)[1]) for side in ("width", "height"))  # type: ignore[index]
    assert width == pytest.approx(4.0 * 72, abs=3) and height == pytest.approx(2.5 * 72, abs=3)
    assert "Two rules" not in drawn, "a figure in print has its title in the caption"
    assert files["mine-attack-accuracy.pdf"].startswith(b"%PDF")
    box = re.search(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)", files["mine-attack-accuracy.pdf"])
    assert box is None or float(box[1]) == pytest.approx(4.0 * 72, abs=3)


def test_curves_have_a_band_over_the_seeds() -> None:
    from sparsefed.commands.reproduce.exhibit import Exhibit, Paper
    from sparsefed.commands.reproduce.exhibit_charts import caption, charts

    table = {"axes": {"a": {"x": {}}}, "scales": {OWN: {"seeds": [0, 1]}}, "metrics": ["test_accuracy"]}
    chart = {"kind": "lines", "x": "round", "y": ["test_accuracy"]}
    exhibit = Exhibit.model_validate({"name": "n", "title": "t", "where": "", "question": "", "chart": chart, **table})
    line: dict[str, Any] = {
        "exhibit": "n",
        "scale": "",
        "cell": {"a": "x"},
        "attack": None,
        "role": "result",
        "key": "k",
        "twins": [],
    }
    rows = [
        {**line, "seed": seed, "status": "done", "metrics": {}, "curves": {"test_accuracy": [(1, value)]}}
        for seed, value in ((0, 0.25), (1, 0.75))
    ]
    whole = charts(exhibit, rows, Paper())["test-accuracy"]
    assert caption(whole) == "Bands are from the lowest to the highest of the seeds."
    drawn = whole.to_dict()
    assert "area" in [layer["mark"]["type"] for layer in drawn["layer"]]
    (points,) = [points for points in drawn["datasets"].values() if points]
    assert (points[0]["low"], points[0]["y"], points[0]["high"]) == (0.25, 0.5, 0.75)


@pytest.mark.parametrize("text", ["3.3", "3x", "0.1x2", "3x2,1", "axb"])
def test_a_wrong_size_says_how(text: str) -> None:
    with pytest.raises(ConfigError, match=r"3\.3x2\.2"):
        FigureSize.parse(text)


def test_a_wrong_format_lists_the_right_ones(swept: tuple[Path, ExhibitResult]) -> None:
    with pytest.raises(ConfigError, match="pdf"):
        exports(swept[1], figures=["pfd"])


def test_csv_quotes_what_needs_it() -> None:
    assert to_csv([{"a": 'x,"y"'}]) == b'a\n"x,""y"""\n'


def test_the_example_is_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    exhibit = sweeping.load_sweep(examples / "own_sweep.toml")
    assert "12 combinations" in sweeping.described(exhibit) and len(exhibit.claims) == 2
