"""The study that Optuna keeps in a database: its name, how it is opened, its dead trials, its trials as records.

Importing this module is cheap, and Optuna is an extra: it is loaded when a study is opened.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from sparsefed import config as configs
from sparsefed import runs
from sparsefed.commands.tune.space import Categories, Searched, Space
from sparsefed.commands.tune.trials import WARMUP, Objective, Trial
from sparsefed.config import Config
from sparsefed.core.errors import ConfigError, RunError, quoted

if TYPE_CHECKING:
    import optuna

DATABASE, QUESTION = "study.db", "study.json"
HEARTBEAT, GRACE = 30, 120  # seconds: a trial without a heartbeat for so long is dead


def study_name(folder: Path, config: Config, space: Space, objective: Objective) -> str:
    """Return the name of a study, determined by its question, and write that question into the folder.

    A question is everything that changes a number, except where the search begins: a folder holds one question, and
    machines that use one database for equal questions share a study.

    Raises:
        RunError: The folder holds a search of another question.
    """
    table = configs.dump(config)
    table["attack"] = {key: value for key, value in table["attack"].items() if key not in space}
    for key in ("name", "checkpoint_every"):
        table.pop(key, None)
    searched = {name: asdict(each) for name, each in space.items()}
    text = json.dumps({"config": table, "space": searched, "objective": objective}, indent=2, sort_keys=True)
    path = folder / QUESTION
    if path.exists():
        _refuse_another(path, json.loads(text))
    else:
        runs.write_atomically(path, (text + "\n").encode())
    return f"sparsefed-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _refuse_another(path: Path, question: Mapping[str, Any]) -> None:
    try:
        before = dict(_flat(dict(json.loads(path.read_text(encoding="utf-8")))))
    except (ValueError, TypeError) as error:
        raise RunError(
            f"{path} is damaged ({error}); delete it: it only says what the search beside it is of"
        ) from None
    now = dict(_flat(question))
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        key = changed[0]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise RunError(
            f"{path.parent} holds another search: {key.removeprefix('config.')} was {before.get(key)} and is "
            f"{now.get(key)}{more}; choose another folder with --out, or undo the change to go on"
        )


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in table.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{path}{key}.")
        else:
            yield f"{path}{key}", item


def library() -> Any:
    """Return Optuna, or raise an error that explains what to install."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna; install it with: pip install 'sparsefed[tune]'") from None
    return optuna


@contextmanager
def opened(name: str, folder: Path, url: str | None, objective: Objective) -> Iterator[optuna.Study]:
    """Open the study of that name in the database at the URL, or in the folder's own; raise clear errors."""
    import sqlalchemy.exc

    optuna = library()
    failures = (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError)
    with _quiet():
        storage = _storage(folder, url, failures)
        try:
            yield optuna.create_study(
                storage=storage,
                study_name=name,
                load_if_exists=True,
                directions=["maximize"] * (2 if objective == "both" else 1),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=WARMUP),
            )
        except Exception as error:
            if not any(isinstance(each, failures) for each in _chain(error)):
                raise
            raise RunError(
                f"the database of the search failed ({_reason(error)}); mend that, then go on with the same command: "
                "every finished trial is kept"
            ) from error
        finally:
            storage.remove_session()
            storage.engine.dispose()


def _storage(folder: Path, url: str | None, failures: tuple[type[Exception], ...]) -> Any:
    """Open the database with a heartbeat, which reveals trials whose machine is gone."""
    import sqlalchemy

    own = sqlalchemy.URL.create("sqlite", database=str(folder.resolve() / DATABASE)).render_as_string()
    used = url or own.replace("{", "{{").replace("}", "}}")  # Optuna treats the URL as a template
    waiting = {"connect_args": {"timeout": 60}} if used.startswith("sqlite") else {"pool_pre_ping": True}
    # No driver; another version's tables; no URL:
    refusals: tuple[type[Exception], ...] = (*failures, ImportError, RuntimeError, ValueError, KeyError)
    try:
        return library().storages.RDBStorage(used, waiting, heartbeat_interval=HEARTBEAT, grace_period=GRACE)
    except refusals as error:
        if url is None:
            raise RunError(
                f"{folder / DATABASE} cannot be opened ({_reason(error)}); mend that, or delete the file: the search "
                "then starts from its first trial"
            ) from error
        raise ConfigError(
            f"the study's database cannot be opened ({_reason(error)}); --storage takes a URL as SQLAlchemy does, for "
            "instance sqlite:///study.db or postgresql://user@host/name, with its driver installed (for PostgreSQL "
            "pip install 'sparsefed[postgresql]')"
        ) from error


def _reason(error: BaseException) -> str:
    """Return the first line of the database's own message, which SQLAlchemy and Optuna wrap."""
    *_, first = _chain(error)
    return str(first).splitlines()[0] if str(first) else type(first).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, and so on; Optuna may wrap the errors of its database in its own."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna, which logs each trial and warns of what it calls experimental: heartbeat, shared studies."""
    optuna = library()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def patiently() -> Iterator[Callable[[], None]]:
    """Delay Ctrl-C, and whatever else is treated like it, until `check` is called between two rounds.

    During a write, the database libraries would turn it into another error. A second Ctrl-C does not wait.
    """
    waiting: list[Callable[[], object]] = []

    def hold(before: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
        if waiting:
            before(number, frame)
        waiting.append(functools.partial(before, number, None))

    def check() -> None:
        while waiting:
            waiting.pop()()

    receiving = threading.current_thread() is threading.main_thread()
    present = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if receiving}
    handlers = {sig: before for sig, before in present.items() if callable(before)}
    try:
        for sig, before in handlers.items():
            signal.signal(sig, functools.partial(hold, before))
        yield check
    finally:
        for sig, before in handlers.items():
            signal.signal(sig, before)
    check()


def in_state(study: optuna.Study, *names: str) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that are in one of these of Optuna's states."""
    states = library().trial.TrialState
    return study.get_trials(deepcopy=False, states=tuple(states[name] for name in names))


def read(frozen: optuna.trial.FrozenTrial, space: Space) -> Trial:
    """Return the record of a trial that has ended; refuse one that this search cannot have made.

    A database may come from somebody else: only values of searched parameters are ever put into a config.
    """
    known, complete = frozen.user_attrs, library().trial.TrialState.COMPLETE
    ended: Literal["finished", "pruned"] = "finished" if frozen.state == complete else "pruned"
    strange = [name for name, value in frozen.params.items() if not _is_searched(value, space.get(name))]
    try:
        if strange:
            raise ValueError(f"its parameter {quoted(strange[0])} is not searched, or has another kind of value")
        return Trial(frozen.number, frozen.params, "refused" if "refused" in known else ended, **_numbers(known))
    except (TypeError, ValueError) as error:
        raise RunError(
            f"trial {frozen.number} in the database of the search was not made by it ({error}); use the database that "
            "belongs to it, or search in another folder with --out"
        ) from error


def _is_searched(value: Any, searched: Searched | None) -> bool:
    if isinstance(searched, Categories):
        return value in searched.options
    return searched is not None and isinstance(value, int | float) and math.isfinite(value)


def _numbers(known: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(known.get("result", {}))
    if strange := [key for key, value in result.items() if not isinstance(value, int | float | None)]:
        raise ValueError(f"its {quoted(strange[0])} is no number")
    return result


def bury(study: optuna.Study, place: str, alone: bool) -> None:
    """Mark the trials that a dead process left running as failed.

    The holder of the folder's lock can be sure that no process works on trials begun in it: on any trial if the
    database is the folder's own (`alone`), otherwise on those with its `place`.
    """
    for trial in in_state(study, "RUNNING"):
        if alone or trial.user_attrs.get("place") == place:
            study.tell(trial.number, state=library().trial.TrialState.FAIL)
