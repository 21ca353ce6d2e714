"""A sweep as a file: a config, what is varied, seeds, a search for the attack, claims and a chart.

The file becomes an exhibit of `reproduce` without the paper's numbers, so that everything the paper's tables have is
there for any other grid: cells that are run once and resumed, the strongest attack per cell, twins, claims and charts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sparsefed import config as configs
from sparsefed.commands.audit.attack_specs import variants
from sparsefed.commands.reproduce.exhibit import OWN, Exhibit, Pick, Twins
from sparsefed.commands.reproduce.exhibit_charts import number
from sparsefed.commands.reproduce.grid import combinations, plan
from sparsefed.commands.reproduce.load import one_sentence
from sparsefed.commands.reproduce.run import ExhibitResult, outcome, run_exhibits
from sparsefed.config import Config, Named
from sparsefed.config import templates as bases
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import OnProgress
from sparsefed.results.measures import MEASURES
from sparsefed.sweeps.cells import Table
from sparsefed.sweeps.runner import default_jobs, failures, working_folder
from sparsefed.sweeps.sweep import SEED, label, part, table_of

METRICS = ("test_accuracy", "attack_accuracy")
MOST_TRIALS = 100
Count = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True, ge=0)]


class SweepSearch(BaseModel):
    """How each cell's attack is searched for: `trials` spread over the ranges of `tune`, or variants by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    trials: Annotated[int, Field(strict=True, ge=2, le=MOST_TRIALS)] | None = None
    attacks: dict[str, Table] = {}
    seed: Seed = 1000  # no reported run is one that was selected
    set: Table = {}


class SweepFile(BaseModel):
    """The content of a sweep's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str = ""
    question: str = ""
    config: str = ""  # a config file, beside this one
    common: Table = {}  # a part of a config, over that file's
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}  # values by the key of a config
    axes: dict[str, dict[str, Table]] = {}  # named values, each a part of a config
    seeds: Count | tuple[Seed, ...] = 1  # how many, from the config's on, or which
    twins: Twins = ()
    metrics: tuple[str, ...] = ()
    search: SweepSearch | None = None
    skip: tuple[Pick, ...] = ()
    claims: tuple[Table, ...] = ()
    chart: Table | None = None


def sweep_file(
    file: str | Path,
    *,
    folder: str | Path | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ExhibitResult:
    """Run the sweep that a file describes, and judge its claims.

    Args:
        file: A TOML file as docs/sweep.md describes it.
        folder: Where results and runs go and finished ones are found; by default a temporary folder.
        jobs: How many runs at a time; by default one per core.
        on_progress: Called with a `Progress` whenever something has changed.

    Returns:
        The results with verdicts on the file's claims; `problem` describes runs that failed.

    Raises:
        ConfigError: If the file or a config that it makes is wrong; nothing has been run then.
        RunError: If the folder cannot be used.
    """
    planned = plan(load_sweep(file), OWN)
    with working_folder(folder) as out:
        ledger = run_exhibits([planned], out, default_jobs() if jobs is None else jobs, on_progress)
        return replace(outcome(planned, out), problem=failures(ledger, out))


def load_sweep(file: str | Path) -> Exhibit:
    """Load a sweep's file as an exhibit of one's own, every config in it checked."""
    path = Path(file)
    with one_sentence(str(path)):
        wanted = SweepFile.model_validate(_content(path))
        own = configs.read(path.parent / wanted.config) if wanted.config else None
        exhibit = Exhibit.model_validate(_exhibit(path, wanted, own))
    combinations(exhibit, OWN)  # every config is parsed, before anything of the search is
    return exhibit if wanted.search is None else _with_search(exhibit, wanted.search, str(path))


def described(exhibit: Exhibit) -> str:
    """Return how many runs a sweep has, in a sentence."""
    groups = plan(exhibit, OWN).sweep.groups
    cells = {slot.cell.key for group in groups for slot in group.trials}
    searched = f", {len(cells)} runs to search for the attacks" if cells else ""
    reported = sum(group.coming for group in groups)
    varied = ", ".join(f"{axis} ({len(values)})" for axis, values in exhibit.axes.items())
    return f"{exhibit.title}: {len(groups)} combinations of {varied}{searched}, {reported} runs with seeds and twins."


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; docs/sweep.md shows what a sweep's file has") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a sweep's file in TOML: {error}") from None


def _exhibit(path: Path, wanted: SweepFile, own: Config | None) -> dict[str, Any]:
    """Return the table of an exhibit with one scale."""
    common = wanted.common if own is None else bases.over(table_of(own), wanted.common)
    axes = _axes(wanted)
    first = 0 if own is None else own.seed
    seeds = tuple(range(first, first + wanted.seeds)) if isinstance(wanted.seeds, int) else wanted.seeds
    metrics = wanted.metrics or (*METRICS, *(["lost"] if "unattacked" in wanted.twins else []))
    return {
        "name": path.stem,
        "title": wanted.title or path.stem,
        "where": "",
        "question": wanted.question,
        "file": str(path),
        "metrics": metrics,
        "twins": wanted.twins,
        "common": common,
        "axes": axes,
        "skip": wanted.skip,
        "scales": {OWN: {"seeds": seeds}},
        "claims": [{"where": "", **claim} for claim in wanted.claims],
        "chart": wanted.chart or _usual_chart(axes, metrics),
    }


def _axes(wanted: SweepFile) -> dict[str, dict[str, Table]]:
    """Return the named axes, then the grid's keys, each with its values as parts of a config, put on in this order."""
    axes: dict[str, dict[str, Table]] = {}
    for key, values in wanted.grid.items():
        if key == SEED:
            raise ConfigError("the grid has the key `seed`; say `seeds = [0, 1, 2]` or `seeds = 3` above it")
        axes[key] = {str(label(value)): part(key, value) for value in values}
        if len(axes[key]) < len(values):
            raise ConfigError(f"the values of {key} must differ from each other, but are {values}")
    for axis in axes.keys() & wanted.axes.keys():
        raise ConfigError(f"{axis} stands in [grid] and in [axes]; give it once")
    axes = wanted.axes | axes
    if not axes:
        raise ConfigError('nothing is varied; add for instance [grid] with "defense.k" = [100, 1000]')
    return axes


def _usual_chart(axes: Mapping[str, Mapping[str, Any]], metrics: tuple[str, ...]) -> dict[str, Any]:
    """Return a chart of every metric: lines along the first axis of numbers, or bars along the first."""
    numeric = [axis for axis, values in axes.items() if len(values) > 1 and None not in map(number, values)]
    known = [metric for metric in metrics if metric in MEASURES]
    return {"kind": "lines" if numeric else "bars", "x": (numeric or list(axes))[0], "y": known or list(METRICS)}


def _with_search(exhibit: Exhibit, search: SweepSearch, source: str) -> Exhibit:
    """Return the exhibit with the variants of the attack that each cell meets the strongest of."""
    if (search.trials is None) == (not search.attacks):
        raise ConfigError(f"{source}: [search] takes either `trials`, a number, or [search.attacks], variants by name")
    attacks = search.attacks or _spread(exhibit, search, source)
    table = exhibit.model_dump() | {"search": {"seed": search.seed, "set": search.set, "attacks": attacks}}
    with one_sentence(source):
        searched = Exhibit.model_validate(table)
    combinations(searched, OWN)
    return searched


def _spread(exhibit: Exhibit, search: SweepSearch, source: str) -> dict[str, Table]:
    """Return variants of the sweep's attack: as given, then points spread over the ranges that `tune` searches."""
    every = [each.result(0).config for each in combinations(exhibit, OWN)]
    names = {config.attack.name for config in every if config.is_attacked and config.attack}
    if len(names) != 1:
        listed = f"several ({', '.join(sorted(names))})" if names else "none"
        raise ConfigError(
            f"{source}: search.trials varies one attack, but the sweep has {listed}; name variants in [search.attacks]"
        )
    first = next(config for config in every if config.is_attacked)
    assert first.attack is not None
    own = Named(name=first.attack.name, **first.attack.params)
    return variants(first, {"name": own.name, **own.params}, search.trials or 1, search.seed)
