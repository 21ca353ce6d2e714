"""Loading of exhibits and the paper's numbers from files; an unknown name raises an error that names the file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sparsefed.commands.reproduce.exhibit import BOUNDS, COMPARING, SCALES, Claim, Exhibit, ExhibitScale, Paper
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.results.measures import MEASURES

Record = TypeVar("Record", bound=BaseModel)
ROUND = "round"  # what a chart may have on its x axis beside axes and metrics


def package() -> Traversable:
    """Return the folder of the paper's exhibits; a custom folder has the same two subfolders."""
    return resources.files("sparsefed.commands.reproduce")


def names(folder: Traversable | None = None) -> list[str]:
    """Return the names of all exhibits."""
    place = (folder or package()) / "exhibits"
    files = place.iterdir() if place.is_dir() else ()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load(name: str, folder: Traversable | None = None) -> Exhibit:
    """Load the exhibit of that name."""
    found = folder or package()
    if name not in names(found):
        raise ConfigError(unknown("exhibit", name, names(found)) + "; `sparsefed reproduce --list` tells what they are")
    return parse(name, (found / "exhibits" / f"{name}.toml").read_text(encoding="utf-8"))


def load_paper(exhibit: Exhibit, folder: Traversable | None = None) -> Paper:
    """Load the paper's numbers for an exhibit; empty if there is no file."""
    file = (folder or package()) / "paper" / f"{exhibit.name}.json"
    return parse_paper(exhibit, file.read_text(encoding="utf-8")) if file.is_file() else Paper()


def parse(name: str, text: str) -> Exhibit:
    """Parse an exhibit from the text of its file, and check every name in it."""
    source = f"exhibit {name}"
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    exhibit = _validated(source, lambda: Exhibit.model_validate({"name": name, **table}))
    for problem in _problems(exhibit):
        raise ConfigError(f"{source}: {problem}")
    return exhibit


def parse_paper(exhibit: Exhibit, text: str) -> Paper:
    """Parse the paper's numbers from the text of their file, and check every name in it."""
    source = f"the paper's numbers for {exhibit.name}"
    try:
        table = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} are not valid JSON: {error}") from None
    paper = _validated(source, lambda: Paper.model_validate(table))
    for number, row in enumerate(paper.rows, 1):
        for problem in (*_pick(exhibit, _listed(row.cell), "cell"), *_metric(exhibit, row.metric)):
            raise ConfigError(f"{source}: row {number}: {problem}")
    return paper


def _validated(source: str, make: Callable[[], Record]) -> Record:
    try:
        return make()
    except ValidationError as error:
        raise ConfigError(f"{source}: " + "; ".join(map(_sentence, error.errors()))) from None


def _sentence(problem: Any) -> str:
    """Return one of pydantic's errors as a sentence."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"there is no key {where}; see the exhibits that there are"
    if problem["type"] == "missing":
        return f"{where} is missing"
    return f"{where or 'it'} must be {problem['msg'].removeprefix('Value error, ').removeprefix('Input should be ')}"


# --- names that must exist -------------------------------------------------------------------------------------------


def _problems(exhibit: Exhibit) -> Iterator[str]:
    """Yield a sentence for every unknown name in the exhibit."""
    for metric in exhibit.metrics:
        yield from _metric(exhibit, metric)
    for skipped in exhibit.skip:
        yield from _pick(exhibit, skipped, "skip")
    for name, scale in exhibit.scales.items():
        yield from _scale_problems(exhibit, scale, f"scales.{name}")
    for claim in exhibit.claims:
        yield from (f"claim '{claim.text}': {problem}" for problem in _claim_problems(exhibit, claim))
    yield from _chart_problems(exhibit)


def _scale_problems(exhibit: Exhibit, scale: ExhibitScale, where: str) -> Iterator[str]:
    yield from _pick(exhibit, scale.only, f"{where}.only")
    yield from _pick(exhibit, {axis: tuple(values) for axis, values in scale.axes.items()}, f"{where}.axes")
    fewer = {axis: tuple(values) for axis, values in scale.fewer_seeds.items()}
    yield from _pick(exhibit, fewer, f"{where}.fewer_seeds")
    if not isinstance(scale.search, bool):
        variants = exhibit.search.attacks if exhibit.search else {}
        yield from (unknown(f"attack of {where}.search", v, variants) for v in scale.search if v not in variants)


def _claim_problems(exhibit: Exhibit, claim: Claim) -> Iterator[str]:
    yield from _metric(exhibit, claim.metric)
    picks = {name: getattr(claim, name) for name in (*COMPARING, "than", "at")}
    for name, pick in picks.items():
        yield from _pick(exhibit, pick or {}, name)
    for axis in (claim.rises, claim.falls):
        if axis is not None:
            yield from _axis(exhibit, axis)
    if claim.form in BOUNDS and claim.by:
        yield "`by` is for comparisons; change the bound instead"
    if claim.form not in ("lower", "higher") and claim.factor != 1:
        yield "`factor` is for `lower` and `higher`"


def _chart_problems(exhibit: Exhibit) -> Iterator[str]:
    chart = exhibit.chart
    if chart is None:
        return
    for metric in chart.y:
        yield from _metric(exhibit, metric)
    if chart.kind == "pareto":
        yield from _metric(exhibit, chart.x)
    elif not (chart.kind == "lines" and chart.x == ROUND):
        yield from _axis(exhibit, chart.x)
    for axis in (chart.colour, chart.panel):
        if axis is not None:
            yield from _axis(exhibit, axis)
    if chart.kind == "heat" and chart.colour is None:
        yield "a chart of kind 'heat' needs `colour`, the axis that goes down"


def _metric(exhibit: Exhibit, metric: str) -> Iterator[str]:
    if exhibit.kind == "runs" and metric not in MEASURES:
        yield unknown("metric", metric, MEASURES)


def _axis(exhibit: Exhibit, axis: str) -> Iterator[str]:
    if exhibit.kind == "runs" and axis not in exhibit.axes:
        yield unknown("axis", axis, exhibit.axes)


def _pick(exhibit: Exhibit, pick: Mapping[str, Iterable[str]], where: str) -> Iterator[str]:
    if exhibit.kind == "formula":  # its rows bring their own axes
        return
    for axis, values in pick.items():
        if axis not in exhibit.axes:
            yield unknown(f"axis in {where}", axis, exhibit.axes)
            continue
        for value in values:
            if value not in exhibit.axes[axis]:
                yield unknown(f"value of axis '{axis}' in {where}", value, exhibit.axes[axis])


def _listed(cell: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {axis: (value,) for axis, value in cell.items()}


def scale_of(exhibit: Exhibit, scale: str) -> ExhibitScale:
    """Return the scale of that name."""
    if scale not in SCALES:
        raise ConfigError(unknown("scale", scale, SCALES))
    found = {str(name): each for name, each in exhibit.scales.items()}
    if scale not in found:
        raise ConfigError(f"exhibit {exhibit.name} has no scale '{scale}'; it has {', '.join(found)}")
    return found[scale]
