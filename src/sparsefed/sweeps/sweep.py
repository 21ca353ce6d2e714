"""`sparsefed.sweep`: many runs from a list of configs, or from a grid over one; each is run once and can be resumed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsefed import config as configs
from sparsefed.config import Config
from sparsefed.config import templates as bases
from sparsefed.core.choice import Chosen
from sparsefed.core.errors import ConfigError
from sparsefed.core.progress import OnProgress
from sparsefed.sweeps import ledger as results
from sparsefed.sweeps.cells import Combination, Table
from sparsefed.sweeps.plan import SweepPlan, group
from sparsefed.sweeps.result import NAME, SEED, SweepResult
from sparsefed.sweeps.runner import default_jobs, failures, run_plans, working_folder

Grid = Mapping[str, Iterable[Any]]


def sweep(
    subjects: Any,
    grid: Grid | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    folder: str | Path | None = None,
    jobs: int | None = None,
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
    groups = tuple(group(each, _seeds(wanted, own), ()) for each, own in combinations)
    plan = SweepPlan("sweep", groups)
    with working_folder(folder) as out:
        ledger = run_plans([plan], out, default_jobs() if jobs is None else jobs, on_progress)
        rows = results.rows(plan, ledger)
        problem = failures(ledger, out)
    if problem is not None and not any(row["status"] == "done" for row in rows):
        raise problem
    return SweepResult(tuple(combinations[0][0].values), tuple(rows), problem)


def _combinations(subjects: Any, grid: Grid | None) -> Iterator[tuple[Combination, int]]:
    """Yield every combination without its seeds, with the seed of its own config."""
    if grid is not None:
        config = configs.as_config(subjects)
        axes = {key: list(values) for key, values in grid.items() if key != SEED}
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            table = _table(config)
            for key, value in chosen.items():
                table = bases.over(table, _part(key, value))
            labels = {key: _label(value) for key, value in chosen.items()}
            source = f"sweep, {', '.join(f'{key} = {label}' for key, label in labels.items())}"
            yield Combination(labels, table, {}, source), config.seed
        return
    for name, subject in _named(subjects):
        config = configs.as_config(subject)
        yield Combination({NAME: name or config.name}, _table(config), {}, f"sweep, {name}"), config.seed


def _named(subjects: Any) -> Iterator[tuple[str, Any]]:
    """Yield subjects by name; those of a list by their configs' names, or by position if these are not unique."""
    if isinstance(subjects, Mapping) and not subjects.keys() <= Config.model_fields.keys():
        yield from ((str(name), subject) for name, subject in subjects.items())
        return
    several = list(subjects) if isinstance(subjects, Sequence) and not isinstance(subjects, str) else [subjects]
    names = [configs.as_config(subject).name for subject in several]
    unique = all(names) and len(set(names)) == len(names)
    yield from zip(names if unique else map(str, range(1, len(names) + 1)), several, strict=True)


def _table(config: Config) -> Table:
    """Return a config as a table to put parts on; if it counts epochs, rounds follow from them."""
    beside = ("name", "seed", *(("rounds",) if config.epochs is not None else ()))
    return {key: item for key, item in configs.dump(config).items() if key not in beside}


def _part(key: str, value: Any) -> Table:
    """Return a part of a config as nested tables.

    >>> _part("defense.k", 10)
    {'defense': {'k': 10}}
    """
    value = value.to_config() if isinstance(value, Chosen) else value
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _label(value: Any) -> Any:
    """Return a value as a record and an axis show it.

    >>> _label(10), _label({"name": "krum", "f": 2})
    (10, 'krum (f = 2)')
    """
    if isinstance(value, Chosen):
        value = value.to_config()
    if isinstance(value, Mapping):
        given = ", ".join(f"{key} = {item}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')} ({given})".strip() if given else str(value.get("name", ""))
    return value if isinstance(value, str | int | float) else str(value)


def _seeds(wanted: int | Iterable[int] | None, own: int) -> tuple[int, ...]:
    if wanted is None:
        return (own,)
    seeds = tuple(range(own, own + wanted)) if isinstance(wanted, int) else tuple(wanted)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds are {list(seeds)}; give at least one, each once")
    return seeds
