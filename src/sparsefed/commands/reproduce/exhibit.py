"""The data model of an exhibit (a table, figure or claim of the paper): scales, claims, chart, the paper's numbers.

This module defines the shape of an exhibit's file and checks what the file alone can show; `load.py` checks the names
in it, and `grid.py` its configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sparsefed.sweeps.cells import Table, Twin

SCALES = ("smoke", "laptop", "schedule", "paper")
ScaleName = Literal["smoke", "laptop", "schedule", "paper"]


def _several(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


def _picked(given: Any) -> Any:
    return {axis: _several(values) for axis, values in given.items()} if isinstance(given, dict) else given


def _twins(given: Any) -> Any:
    return {True: ("unattacked",), False: ()}[given] if isinstance(given, bool) else _several(given)


Names = Annotated[tuple[str, ...], BeforeValidator(_several)]
Pick = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_picked)]  # values of axes, one or several of each
Twins = Annotated[tuple[Twin, ...], BeforeValidator(_twins)]
SeedCount = Annotated[int, Field(strict=True, ge=1)]
Share = Annotated[float, Field(allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Search(_Record):
    """Variants of the attack, of which each combination of the axes meets the strongest."""

    seed: Annotated[int, Field(strict=True, ge=0)] = 1000  # no reported run is one that was selected
    attacks: dict[str, Table] = Field(min_length=1)  # merged into [attack]
    set: Table = {}  # a part of a config for the runs of the search alone, e.g. fewer rounds


class ExhibitScale(_Record):
    """A scale: which part of the paper is run, and how small."""

    seeds: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = Field(min_length=1)
    fewer_seeds: dict[str, dict[str, SeedCount]] = {}  # for single values of an axis, the first so many of them
    note: str = ""  # what was scaled, for a person
    set: Table = {}  # over every combination
    only: Pick = {}  # the axes' values that are run at this scale
    axes: dict[str, dict[str, Table]] = {}  # over single values of an axis, after `set`
    search: bool | Names = True  # False: the attack as given; names: of these variants alone
    twins: Twins | None = None  # None: the exhibit's
    est_minutes: Annotated[float, Field(gt=0)] | None = None  # on two cores, one run on each

    @model_validator(mode="after")
    def _each_seed_once(self) -> ExhibitScale:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds that differ from each other, but they are {list(self.seeds)}")
        return self

    def seeds_at(self, values: Mapping[str, str]) -> tuple[int, ...]:
        """Return the seeds of one combination: expensive runs may have fewer."""
        told = [count for axis, counts in self.fewer_seeds.items() for v, count in counts.items() if values[axis] == v]
        return self.seeds[: min(told, default=len(self.seeds))]


COMPARING = ("lower", "higher", "alike")
TRENDS = ("rises", "falls")
BOUNDS = ("below", "above")


class Claim(_Record):
    """A claim of the paper, in words and as a comparison that `claims.py` makes."""

    text: str
    where: str
    metric: str
    lower: Pick | None = None  # one value of one axis: lower than every other value of that axis, or than `than`
    higher: Pick | None = None
    alike: Pick | None = None  # differs from the others by at most `within`
    than: Pick | None = None
    rises: str | None = None  # along this axis, in the order of its values
    falls: str | None = None
    below: Share | None = None  # a bound for everything at `at`
    above: Share | None = None
    by: Annotated[float, Field(ge=0)] = 0.0  # how much at least, in the metric's unit
    factor: Annotated[float, Field(ge=1)] = 1.0  # and how many times lower or higher at least
    within: Annotated[float, Field(ge=0)] | None = None
    at: Pick = {}  # where it is made; everywhere by default

    @property
    def form(self) -> str:
        """Return which kind of comparison the claim makes."""
        return next(name for name in (*COMPARING, *TRENDS, *BOUNDS) if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _one_form(self) -> Claim:
        forms = [name for name in (*COMPARING, *TRENDS, *BOUNDS) if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError(f"a claim with one of {', '.join((*COMPARING, *TRENDS, *BOUNDS))}, but has {forms}")
        subject = getattr(self, forms[0]) if forms[0] in COMPARING else None
        if subject is not None and (len(subject) != 1 or len(next(iter(subject.values()))) != 1):
            raise ValueError(f'a claim about one value of one axis, e.g. {forms[0]} = {{ defense = "SparseFed" }}')
        if subject is not None and self.than is not None and self.than.keys() != subject.keys():
            raise ValueError(f"a claim whose `than` is about the same axis as {forms[0]}: {', '.join(subject)}")
        if (forms[0] == "alike") != (self.within is not None):
            raise ValueError("a claim with both `alike` and `within`, or neither")
        return self


class Chart(_Record):
    """The description of a chart.

    `bars`: x is an axis, y metrics (a picture each); `lines`: as bars, or x = "round"; `heat`: x is an axis across,
    colour one down, y metrics shown as colours; `pareto`: x and y are metrics, one point per combination.
    """

    kind: Literal["bars", "lines", "heat", "pareto"]
    x: str
    y: Annotated[Names, Field(min_length=1)]
    colour: str | None = None
    panel: str | None = None  # an axis: a picture for each of its values


class Exhibit(_Record):
    """One table, figure or text claim of the paper."""

    name: str
    title: str
    where: str  # the paper's number
    label: str = ""  # in its TeX source
    question: str
    kind: Literal["runs", "formula"] = "runs"
    formula: str = ""  # module:function that gives the rows
    metrics: tuple[str, ...] = Field(min_length=1)
    twins: Twins = ()
    common: Table = {}
    axes: dict[str, dict[str, Table]] = {}
    search: Search | None = None
    skip: tuple[Pick, ...] = ()
    scales: dict[ScaleName, ExhibitScale] = {}
    claims: tuple[Claim, ...] = ()
    chart: Chart | None = None

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Exhibit:
        if self.kind == "formula" and (not self.formula or self.scales or self.axes or self.common):
            raise ValueError("a formula's exhibit with `formula` and without common, axes and scales")
        if self.kind == "runs" and (self.formula or not self.scales or not self.axes):
            raise ValueError("an exhibit of runs with axes and scales, and without `formula`")
        return self


class PaperRow(_Record):
    """One number as the paper prints it; accuracies are fractions."""

    cell: dict[str, str]  # values of axes
    metric: str
    value: float | str | None  # text where the paper prints none, e.g. "DNC"
    spread: float | None = None
    as_printed: str


class Paper(_Record):
    """The paper's numbers for an exhibit."""

    where: str = ""
    label: str = ""
    rows: tuple[PaperRow, ...] = ()
    notes: tuple[str, ...] = ()
