"""The data model of an exhibit (a table, figure or claim of the paper): scales, claims, chart, the paper's numbers.

This module defines the shape of an exhibit's file and checks every name in it; `load.py` reads it, and `grid.py` checks
its configs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, NonNegativeFloat, model_validator

from sparsefed.core.errors import unknown
from sparsefed.results.measures import MEASURES
from sparsefed.sweeps.cells import Table, Twin

SCALES = ("smoke", "laptop", "dense", "schedule", "paper")
ScaleName = Literal["smoke", "laptop", "dense", "schedule", "paper", ""]
OWN: ScaleName = ""  # the only scale of an exhibit that is not the paper's
ROUND = "round"  # what a chart may have on its x axis beside axes and metrics


def _several(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


def _twins(given: Any) -> Any:
    return {True: ("unattacked",), False: ()}[given] if isinstance(given, bool) else _several(given)


Names = Annotated[tuple[str, ...], BeforeValidator(_several)]
Pick = dict[str, Names]  # values of axes, one or several of each
AxisValues = Mapping[str, Iterable[str]]
Twins = Annotated[tuple[Twin, ...], BeforeValidator(_twins)]
SeedCount = Annotated[int, Field(strict=True, ge=1)]


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
            raise ValueError(f"the seeds must differ from each other, but are {list(self.seeds)}")
        return self

    def seeds_at(self, values: Mapping[str, str]) -> tuple[int, ...]:
        """Return the seeds of one combination: expensive runs may have fewer."""
        limits = [counts[values[axis]] for axis, counts in self.fewer_seeds.items() if values[axis] in counts]
        return self.seeds[: min(limits, default=len(self.seeds))]


COMPARING = ("lower", "higher", "alike")
TRENDS = ("rises", "falls")
BOUNDS = ("below", "above")
PRINTED = ("near", "order")
FORMS = (*COMPARING, *TRENDS, *BOUNDS, *PRINTED)


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
    below: FiniteFloat | None = None  # a bound for everything at `at`
    above: FiniteFloat | None = None
    near: NonNegativeFloat | None = None  # so many of their standard deviations from the printed number
    order: str | None = None  # along this axis, in the order of the printed numbers
    by: NonNegativeFloat = 0.0  # how much at least, in the metric's unit
    factor: Annotated[float, Field(ge=1)] = 1.0  # and how many times lower or higher at least
    within: NonNegativeFloat | None = None
    at: Pick = {}  # where it is made; everywhere by default

    @property
    def form(self) -> str:
        """Return which kind of comparison the claim makes."""
        return next(name for name in FORMS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _one_form(self) -> Claim:
        forms = [name for name in FORMS if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError(f"must be a claim with one of {', '.join(FORMS)}, but has {forms}")
        (form,) = forms
        subject: Pick = getattr(self, form) if form in COMPARING else {}
        if form in COMPARING and [len(values) for values in subject.values()] != [1]:
            raise ValueError(f'must be a claim about one value of one axis, e.g. {form} = {{ defense = "SparseFed" }}')
        if subject and self.than is not None and self.than.keys() != subject.keys():
            raise ValueError(f"must be a claim whose `than` is about the same axis as {form}: {', '.join(subject)}")
        if form != "near" and (form == "alike") != (self.within is not None):
            raise ValueError("must be a claim with both `alike` and `within`, or neither")
        if form in BOUNDS and self.by:
            raise ValueError("`by` is for comparisons; change the bound instead")
        if form not in ("lower", "higher") and self.factor != 1:
            raise ValueError("`factor` is for `lower` and `higher`")
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

    @model_validator(mode="after")
    def _heat_goes_down(self) -> Chart:
        if self.kind == "heat" and self.colour is None:
            raise ValueError("a chart of kind 'heat' needs `colour`, the axis that goes down")
        return self


class Exhibit(_Record):
    """One table, figure or text claim of the paper."""

    name: str
    title: str
    where: str  # the paper's number
    external: bool = False  # not of the paper: another study's setting and numbers
    label: str = ""  # in its TeX source
    file: str = ""  # of a sweep of one's own, which has no paper
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
            raise ValueError("an exhibit of a formula must have `formula`, and neither common, axes nor scales")
        if self.kind == "runs" and (self.formula or not self.scales or not self.axes):
            raise ValueError("an exhibit of runs must have axes and scales, and no `formula`")
        for problem in self._problems():
            raise ValueError(problem)
        return self

    @property
    def in_paper(self) -> bool:
        """Return whether this is a table, a figure or a claim of the paper."""
        return bool(self.where) and not self.where.startswith("not in the paper")

    def unknown_names(
        self, metrics: Iterable[str] = (), picks: Iterable[AxisValues] = (), where: str = ""
    ) -> Iterator[str]:
        """Yield a sentence for each metric, axis and value that does not exist; a formula's rows bring their own."""
        if self.kind == "formula":
            return
        place = f" in {where}" if where else ""
        yield from (unknown("metric", metric, MEASURES) for metric in metrics if metric not in MEASURES)
        for axis, values in ((axis, values) for pick in picks for axis, values in pick.items()):
            if axis not in self.axes:
                yield unknown(f"axis{place}", axis, self.axes)
            known = self.axes.get(axis, {})
            yield from (
                unknown(f"value of axis '{axis}'{place}", value, known) for value in values if value not in known
            )

    def _problems(self) -> Iterator[str]:
        yield from self.unknown_names(self.metrics, self.skip, "skip")
        variants = self.search.attacks if self.search else {}
        for name, scale in self.scales.items():
            parts: dict[str, AxisValues] = {"only": scale.only, "axes": scale.axes, "fewer_seeds": scale.fewer_seeds}
            for key, pick in parts.items():
                yield from self.unknown_names(picks=[pick], where=f"scales.{name}.{key}")
            chosen = () if isinstance(scale.search, bool) else scale.search
            yield from (unknown(f"attack of scales.{name}.search", v, variants) for v in chosen if v not in variants)
        for claim in self.claims:
            trend: Pick = {axis: () for axis in (claim.rises, claim.falls, claim.order) if axis is not None}
            picks = filter(None, (claim.lower, claim.higher, claim.alike, claim.than, claim.at, trend))
            yield from (f"claim '{claim.text}': {each}" for each in self.unknown_names([claim.metric], picks))
        if self.chart is not None:
            chart, pareto = self.chart, self.chart.kind == "pareto"
            x = [] if pareto or (chart.kind == "lines" and chart.x == ROUND) else [chart.x]
            axes = filter(None, [*x, chart.colour, chart.panel])
            yield from self.unknown_names([*chart.y, *([chart.x] if pareto else [])], [dict.fromkeys(axes, ())])


class PaperRow(_Record):
    """One number as the paper prints it; accuracies are fractions."""

    cell: dict[str, str]  # values of axes
    metric: str
    value: float | str | None  # text where the paper prints none, e.g. "DNC"
    spread: float | None = None
    as_printed: str

    @property
    def pick(self) -> Pick:
        """Return the combinations at which the number stands."""
        return {axis: (value,) for axis, value in self.cell.items()}


class Paper(_Record):
    """The paper's numbers for an exhibit."""

    where: str = ""
    label: str = ""
    rows: tuple[PaperRow, ...] = ()
    notes: tuple[str, ...] = ()
