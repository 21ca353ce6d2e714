"""`sparsefed.sweep`: many runs from a list of configs, or from a grid over one; each is run once and can be resumed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import altair as alt

from sparsefed import config as configs
from sparsefed.config import Config
from sparsefed.config import templates as bases
from sparsefed.core.choice import Chosen
from sparsefed.core.errors import ConfigError, RunError, unknown
from sparsefed.core.progress import OnProgress
from sparsefed.reports import document as doc
from sparsefed.reports.lines import colours, dressed, share_axis, stroke
from sparsefed.reports.result import Report
from sparsefed.results.measures import MEASURES, measure
from sparsefed.results.numbers import significant
from sparsefed.results.summary import ACCURACY
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.cells import Combination, Table
from sparsefed.sweeps.ledger import Row
from sparsefed.sweeps.plan import SweepPlan, group
from sparsefed.sweeps.runner import default_jobs, failures, run_plans, working_folder

NAME, SEED = "name", "seed"
SHOWN = ("test_accuracy", "attack_accuracy", "converged")  # on a page; records have every measure
ALL = "all runs"  # the line of a chart without colours

Grid = Mapping[str, Iterable[Any]]


@dataclass(frozen=True)
class SweepResult(Report, described_by=__name__):
    """The runs of a sweep: the settings that distinguish them, and what was measured of each."""

    axes: tuple[str, ...]  # the keys of the grid, or "name"
    rows: tuple[Row, ...]  # as the results file has them
    problem: RunError | None = None  # a sentence about runs that failed
    scored_by: str = ACCURACY  # the metric that the runs are judged by; "score" where they differ

    @property
    def score(self) -> str:
        return self.scored_by

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per run: its settings, its seed, whether it is done, and its measures by name."""
        return [{**row["cell"], SEED: row[SEED], "status": row["status"], **row["metrics"]} for row in self.rows]

    def chart(self, x: str | None = None, y: str = "test_accuracy", colour: str | None = None) -> alt.LayerChart:
        """Draw a measure against a setting: the mean over the seeds, and their range as a band.

        Args:
            x: A setting of the sweep; by default the first.
            y: What was measured, by a name of `results.measures.MEASURES`.
            colour: Another setting, a line for each of its values.

        Returns:
            An Altair chart, which notebooks show and which can be saved.

        Raises:
            ConfigError: If a setting or measure has no such name, or was not measured.
        """
        x = x or self.axes[0]
        for key in filter(None, (x, colour)):
            if key not in self.axes:
                raise ConfigError(unknown("setting of the sweep", key, self.axes))
        if y not in MEASURES:
            raise ConfigError(unknown("measure", y, MEASURES))
        points = list(self._points(x, y, colour))
        if not points:
            raise ConfigError(f"{y} was not measured in any run of this sweep")
        strokes = {line: stroke(i) for i, line in enumerate(dict.fromkeys(point["line"] for point in points))}
        numeric = all(isinstance(point["x"], int | float) for point in points)
        kind, scale = ("Q", alt.Scale(zero=False)) if numeric else ("N", None)
        title = measure(y).title if y != "test_accuracy" else self.score[:1].upper() + self.score[1:]
        up = {**(share_axis("mean") if measure(y).share else {"shorthand": "mean:Q"}), "title": title}
        across = alt.X(f"x:{kind}", title=x, sort=None, scale=scale)
        base = alt.Chart(alt.InlineData(values=points)).encode(across, color=colours(strokes))
        band = base.mark_area(fillOpacity=0.2).encode(y="least:Q", y2="most:Q")
        line = base.mark_line(point=True, tooltip=alt.TooltipContent("data")).encode(y=alt.Y(**up))
        subtitle = "Mean over the seeds; the band is from the lowest to the highest."
        return dressed(alt.LayerChart(layer=[band, line]), alt.Title(f"{title} by {x}", subtitle=subtitle), [*strokes])

    def _points(self, x: str, y: str, colour: str | None) -> Iterator[dict[str, Any]]:
        """Yield a point per setting, averaged over its seeds and over whatever else was varied."""
        measured: dict[tuple[Any, str], list[float]] = {}
        for record in self.records():
            if record.get(y) is not None:
                line = f"{colour} = {record[colour]}" if colour else ALL
                measured.setdefault((record[x], line), []).append(float(record[y]))
        for (at, line), values in measured.items():
            low, mean, high = (significant(f(values)) for f in (min, fmean, max))
            yield {"x": at, "line": line, "mean": mean, "least": low, "most": high}


def document(result: SweepResult) -> doc.Document:
    """Return the table of all runs."""
    records = result.records()
    shown = [name for name in SHOWN if any(name in record for record in records)]
    head = [*result.axes, SEED, *(measure(name).title for name in shown)]
    lines = (
        [*(str(record[key]) for key in (*result.axes, SEED)), *(measure(n).write(record.get(n)) for n in shown)]
        for record in records
    )
    runs = doc.section("Runs", doc.table("Runs of the sweep", head, lines), terminal=True)
    return doc.Document("SparseFed sweep", f"{len(records)} runs.", (runs,))


def numbers(result: SweepResult) -> list[dict[str, Any]]:
    """Return the records, for programs."""
    return result.records()


def sweep(
    subjects: Any,
    grid: Grid | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    folder: str | Path | None = None,
    jobs: int | None = None,
    on: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> SweepResult:
    """Run many configs, several at a time, and return a record of each run.

    A run that is finished in `folder` is not run again, and one that was cut off continues from its checkpoint.
    Subjects that hold objects of this process (a module, tensors, a function) are run in it, one after the other; the
    others by worker processes. A run that fails does not stop the others.

    Args:
        subjects: A list of subjects, or a mapping from names to them; with `grid`, one subject. A subject is a config
            file, a table, a `Config` or a `Simulation`.
        grid: Values by the key of a config, every combination of which is run:
            `{"defense.k": [10, 100], "seed": range(3)}`. A value may also be a table or a choice such as
            `defenses.krum(f=2)`, under the key `"defense"`.
        seeds: The seeds that everything is run with, or how many, counted from the config's; by default its own.
        folder: Where runs and results go; by default a temporary folder that is removed at the end.
        jobs: How many runs at a time; by default one per core.
        on: "ray" to run them on the machines of a Ray cluster, with the same results.
        on_progress: Called with a `Progress` whenever something has changed.

    Returns:
        The runs in the order of subjects, grid and seeds; `problem` describes those that failed.

    Raises:
        ConfigError: If a config is wrong; nothing has been run then.
        RunError: If the folder cannot be used, or every run failed.
    """
    combinations = list(_combinations(subjects, grid))
    if not combinations:
        raise ConfigError("there is nothing to sweep: give at least one subject, and at least one value of every key")
    named = (grid or {}).get(SEED)
    if named is not None and seeds is not None:
        raise ConfigError("the grid names seeds and so does seeds=; give one of them")
    wanted = named if seeds is None else seeds
    plan = SweepPlan("sweep", tuple(group(each, _seeds(wanted, own), ()) for each, own in combinations))
    with working_folder(folder) as out:
        ledger = run_plans([plan], out, default_jobs(on) if jobs is None else jobs, on_progress, on=on)
        rows = results.rows(plan, ledger)
        problem = failures(ledger, out)
    if problem is not None and not any(row["status"] == "done" for row in rows):
        raise problem
    return SweepResult(tuple(combinations[0][0].values), tuple(rows), problem, _scored_by(combinations))


def _scored_by(combinations: Sequence[tuple[Combination, int]]) -> str:
    """Return the name of the metric that all combinations are judged by, or "score"."""
    tables = [each.table for each, _ in combinations]
    tasks = {repr((table.get("data"), table.get("train", {}).get("metric"))): table for table in tables}
    titles = {configs.score_title(configs.parse(table)) for table in tasks.values()}
    return titles.pop() if len(titles) == 1 else "score"


def _combinations(subjects: Any, grid: Grid | None) -> Iterator[tuple[Combination, int]]:
    """Yield every combination without its seeds, with the seed of its own config."""
    if grid is None:
        for name, subject in _named(subjects):
            config = configs.as_config(subject)
            yield Combination({NAME: name or config.name}, table_of(config), {}, f"sweep, {name}"), config.seed
        return
    config = configs.as_config(subjects)
    axes = {key: [_plain(value) for value in values] for key, values in grid.items() if key != SEED}
    for values in itertools.product(*axes.values()):
        table, labels = table_of(config), {}
        for key, value in zip(axes, values, strict=True):
            table, labels[key] = bases.over(table, part(key, value)), label(value)
        source = f"sweep, {', '.join(f'{key} = {named}' for key, named in labels.items())}"
        yield Combination(labels, table, {}, source), config.seed


def _named(subjects: Any) -> Iterable[tuple[str, Any]]:
    """Return subjects by name; those of a list by their configs' names, or by position if these are not unique."""
    if isinstance(subjects, Mapping) and not subjects.keys() <= Config.model_fields.keys():
        return [(str(name), subject) for name, subject in subjects.items()]
    several = list(subjects) if isinstance(subjects, Sequence) and not isinstance(subjects, str) else [subjects]
    names = [configs.as_config(subject).name for subject in several]
    unique = all(names) and len(set(names)) == len(names)
    return zip(names if unique else map(str, range(1, len(names) + 1)), several, strict=True)


def table_of(config: Config) -> Table:
    """Return a config as a table to put parts on; if it counts epochs, rounds follow from them."""
    beside = (NAME, SEED, *(("rounds",) if config.epochs is not None else ()))
    return {key: item for key, item in configs.dump(config).items() if key not in beside}


def _plain(value: Any) -> Any:
    return value.to_config() if isinstance(value, Chosen) else value


def part(key: str, value: Any) -> Table:
    """Return a part of a config as nested tables.

    >>> part("defense.k", 10)
    {'defense': {'k': 10}}
    """
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def label(value: Any) -> Any:
    """Return a value as a record and an axis show it.

    >>> label(10), label({"name": "krum", "f": 2})
    (10, 'krum (f = 2)')
    """
    if isinstance(value, Mapping):
        given = ", ".join(f"{key} = {item}" for key, item in value.items() if key != NAME)
        return f"{value.get(NAME, '')} ({given})".strip() if given else str(value.get(NAME, ""))
    return value if isinstance(value, str | int | float) else str(value)


def _seeds(wanted: int | Iterable[int] | None, own: int) -> tuple[int, ...]:
    if wanted is None:
        return (own,)
    seeds = tuple(range(own, own + wanted)) if isinstance(wanted, int) else tuple(wanted)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds are {list(seeds)}; give at least one, each once")
    return seeds
