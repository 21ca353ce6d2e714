"""The study that Optuna keeps in a database: opened, told apart from the dead, read as trials.

Importing this module is light, and Optuna an extra: it is loaded when a study is opened.
"""

from __future__ import annotations

import functools
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from sparsefed.commands.tune.trials import WARMUP, Objective, Trial
from sparsefed.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    import optuna

DATABASE = "study.db"
HEARTBEAT, GRACE = 30, 120  # seconds: a trial that has not been heard of for so long is dead


def library() -> Any:
    """Optuna, or what to install."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna; install it with: pip install 'sparsefed[tune]'") from None
    return optuna


@contextmanager
def opened(name: str, folder: Path, url: str | None, objective: Objective) -> Iterator[optuna.Study]:
    """The study of that name in the database at the URL, or in the folder's own; trouble with it in one sentence."""
    import sqlalchemy.exc

    optuna = library()
    troubles = (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError)
    strange = (ImportError, RuntimeError, ValueError, KeyError)  # no driver; another version's tables; no URL
    with _quiet():
        try:
            storage = _storage(url or _beside(folder))
        except (*troubles, *strange) as error:
            raise _not_opened(folder, url, error) from error
        try:
            yield optuna.create_study(
                storage=storage,
                study_name=name,
                load_if_exists=True,
                directions=["maximize"] * (2 if objective == "both" else 1),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=WARMUP),
            )
        except Exception as error:
            if not any(isinstance(each, troubles) for each in _chain(error)):
                raise
            raise RunError(
                f"the database of the search failed ({_reason(error)}); mend that, then go on with the same command: "
                "every finished trial is kept"
            ) from error
        finally:
            storage.remove_session()
            storage.engine.dispose()


def _storage(url: str) -> Any:
    """The database, with a heartbeat: trials whose machine is gone are found out."""
    waiting = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    return library().storages.RDBStorage(url, waiting, heartbeat_interval=HEARTBEAT, grace_period=GRACE)


def _beside(folder: Path) -> str:
    import sqlalchemy

    url = sqlalchemy.URL.create("sqlite", database=str(folder.resolve() / DATABASE)).render_as_string()
    return url.replace("{", "{{").replace("}", "}}")  # Optuna takes the URL for a template


def _not_opened(folder: Path, url: str | None, error: Exception) -> Exception:
    if url is None:
        return RunError(
            f"{folder / DATABASE} cannot be opened ({_reason(error)}); mend that, or delete the file: the search then "
            "starts from its first trial"
        )
    return ConfigError(
        f"the study's database cannot be opened ({_reason(error)}); --storage takes a URL as SQLAlchemy does, for "
        "instance sqlite:///study.db or postgresql://user@host/name, with its driver installed"
    )


def _reason(error: BaseException) -> str:
    """The first line of what the database itself said, which SQLAlchemy and Optuna wrap."""
    *_, first = _chain(error)
    return str(first).splitlines()[0] if str(first) else type(first).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was made of, and so on; Optuna, in trouble with its database, may stumble over itself."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna tells each trial on stderr, and warns of what it calls experimental: the heartbeat, sharing a study."""
    optuna = library()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def patiently() -> Iterator[Callable[[], None]]:
    """Ctrl-C, and whatever else is treated like it, waits until `check` is called between two rounds: in the middle of
    a write, the libraries of the database would make another error of it. Asked twice, it does not wait."""
    waiting: list[Callable[[], object]] = []

    def hold(before: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
        if waiting:
            before(number, frame)
        waiting.append(functools.partial(before, number, None))

    def check() -> None:
        while waiting:
            waiting.pop()()

    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield check
        return
    found = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handlers = {sig: before for sig, before in found.items() if callable(before)}
    try:
        for sig, before in handlers.items():
            signal.signal(sig, functools.partial(hold, before))
        yield check
    finally:
        for sig, before in handlers.items():
            signal.signal(sig, before)
    check()


# --- its trials ------------------------------------------------------------------------------------------------------


def in_state(study: optuna.Study, *names: str) -> list[optuna.trial.FrozenTrial]:
    """The trials that are in one of these of Optuna's states."""
    states = library().trial.TrialState
    return study.get_trials(deepcopy=False, states=tuple(states[name] for name in names))


def trials(study: optuna.Study, *names: str) -> list[Trial]:
    """The same, read."""
    return [read(trial) for trial in in_state(study, *names)]


def read(frozen: optuna.trial.FrozenTrial) -> Trial:
    """A trial that has come to its end."""
    known, complete = frozen.user_attrs, library().trial.TrialState.COMPLETE
    ended: Literal["finished", "pruned"] = "finished" if frozen.state == complete else "pruned"
    return Trial(frozen.number, frozen.params, "refused" if "refused" in known else ended, **known.get("result", {}))


def bury(study: optuna.Study, place: str, alone: bool) -> None:
    """Whoever holds the folder's lock knows that nobody is at work on the trials that were begun in it: on any trial,
    where the database is the folder's own, and otherwise on those that say so."""
    for trial in in_state(study, "RUNNING"):
        if alone or trial.user_attrs.get("place") == place:
            study.tell(trial.number, state=library().trial.TrialState.FAIL)
