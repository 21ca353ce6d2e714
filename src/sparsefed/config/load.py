"""Loading configs: TOML files, tables and `--set` to a checked config, and back; every error is one sentence."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from sparsefed import trust
from sparsefed.config import templates as bases
from sparsefed.config.live import PREFIX, live_names
from sparsefed.config.lookup import check, check_without_k, example, takes_peak
from sparsefed.config.overrides import apply
from sparsefed.config.schema import MOST_ROUNDS, Config, Named
from sparsefed.core.errors import ConfigError, quoted, unknown
from sparsefed.core.schedule import epochs_in_rounds
from sparsefed.core.threat import WHO
from sparsefed.models.weights import checksum


def as_config(subject: str | Path | Mapping[str, Any] | Config | Described) -> Config:
    """Return the config of anything that describes a run: a TOML file, a table, a `Config`, or a `Simulation`."""
    if isinstance(subject, Config):
        return subject
    if isinstance(subject, str | Path):
        return read(Path(subject))
    if isinstance(subject, Mapping):
        return parse(subject)
    if isinstance(config := getattr(subject, "config", None), Config):
        return config
    raise ConfigError(
        f"a {type(subject).__name__} describes no run; give a config file, a table, a Config or a Simulation"
    )


def is_live(config: Config) -> bool:
    """Return whether a config refers to objects of this process, so that no other process can run it."""
    return bool(live_names(dump(config)))


class Described(Protocol):
    """An object that has a config, such as a `Simulation`."""

    @property
    def config(self) -> Config: ...


def read(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load a config file, with `key=value` overrides on top; an unnamed config takes the name of the file."""
    return _called_like(path, parse(_table(path, overrides), overrides, str(path)))


def load_without_k(subject: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Load a config file or table whose only problem may be a missing `defense.k`; raise any other error."""
    if isinstance(subject, Path):
        return _called_like(subject, parse(_table(subject, overrides), overrides, str(subject), check_without_k))
    return parse(subject, overrides, rules=check_without_k)


def _called_like(path: Path, config: Config) -> Config:
    return config if config.name else config.model_copy(update={"name": path.stem})


def of_run(table: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the config of a run folder; refuse one that names code, unless this machine wrote it or it is trusted."""
    trust.require(table, folder / "config.toml")
    return parse(table, overrides, str(folder / "config.toml"))


def _table(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    table = _toml(path)
    if trust.is_written_by_command(path):
        trust.require(table, path)
    elif any(":" in override for override in overrides) or _names_code(table):
        trust.import_from(path.absolute().parent)  # a module of the user's may lie beside the config
    return table


def _names_code(table: Mapping[str, Any]) -> bool:
    try:
        return bool(trust.code_in(table))
    except RecursionError:  # which will be refused
        return False


def _toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigError(f"{path} has more than {LARGEST:,} bytes; no config is that long")
        return tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}; `sparsefed list` shows what a config can name") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not in UTF-8, as TOML files are; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a config file in TOML") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply for a config; {_LIMITS}") from None
    except ValueError as error:  # of TOML, or an integer of thousands of digits
        raise ConfigError(f"{path} is not valid TOML: {_lowered(str(error))}") from None


def parse(
    table: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "", rules: Callable[[Config], None] = check
) -> Config:
    """Return a validated config from a table.

    Args:
        table: the config as nested tables.
        overrides: `key=value` settings on top of it.
        source: where the table came from, for error messages.
        rules: checks that the config can run.

    Raises:
        ConfigError: names every problem, and the source.
    """
    try:
        _require_modest(table)
        merged: dict[str, Any] = _copied(table)
        apply(merged, overrides)
        _require_modest(merged)
        config = _with_checksum(_timed(Config.model_validate(_on_its_base(merged))))
        rules(config)
    except ValidationError as error:
        problems = [_sentence(problem) for problem in error.errors()[:MOST_NAMED]]
        more = error.error_count() - len(problems)
        raise ConfigError(_from(source) + "; ".join(problems + [f"and {more} more"] * bool(more))) from None
    except ConfigError as error:
        raise ConfigError(_from(source) + str(error)) from error
    return config


LARGEST = 2**20  # bytes of a config file
MOST_NAMED = 5  # problems of a config in one message
DEPTH, LENGTH, DIGITS = 8, 10_000, 2**128  # of tables in tables, of a text or a list, of a whole number
_LIMITS = f"tables go {DEPTH} deep, texts and lists have {LENGTH:,} characters or values at most"


def _require_modest(value: Any, key: str = "", depth: int = 0) -> None:
    """Refuse what no config needs before anything is made of it: bottomless tables, endless texts, huge numbers."""
    if depth > DEPTH or (isinstance(value, str | list | tuple | Mapping) and len(value) > LENGTH):
        raise ConfigError(f"{key[:80] or 'the config'} is too deep or too long; {_LIMITS}")
    if isinstance(value, int) and abs(value) >= DIGITS:
        raise ConfigError(f"{key} is a whole number of more than 128 bits; no key of a config takes one")
    if isinstance(value, str) and any(ord(char) < 32 or 127 <= ord(char) < 160 for char in value):
        raise ConfigError(f"{key} is {quoted(value)}, which has control characters; leave them out")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _require_modest(str(name), "a key", depth + 1)
            _require_modest(inner, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _require_modest(inner, key, depth + 1)


def _on_its_base(table: dict[str, Any]) -> dict[str, Any]:
    """Return the config merged over its base; `attack = false` removes both [attack] and [threat]."""
    base = table.get("base")
    if base and isinstance(base, str):
        table = bases.over(bases.load(base), {key: item for key, item in table.items() if key != "base"})
    bases.refuse_both(table)
    if table.get("attack") is False:
        table = {key: item for key, item in table.items() if key not in ("attack", "threat")}
    return table


def _timed(config: Config) -> Config:
    """Return the config with epochs converted to rounds, and the peak set to the schedule's default."""
    train, devices, rounds = config.train, config.data.devices, config.rounds
    if config.epochs is not None:
        rounds = epochs_in_rounds(config.epochs, devices, train.cohort)
        if rounds > MOST_ROUNDS:
            raise ConfigError(f"epochs = {config.epochs:g} are {rounds} rounds; use at most {MOST_ROUNDS} rounds")
        if "rounds" in config.model_fields_set and config.rounds != rounds:
            raise ConfigError(
                f"rounds = {config.rounds} and epochs = {config.epochs:g} contradict each other: with {devices} "
                f"devices, {train.cohort} a round, these epochs are {rounds} rounds; give one of them"
            )
    if train.peak_at is None and train.peak_epoch is None:
        train = train.model_copy(update={"peak_at": takes_peak(train.schedule)[1]})
    return config.model_copy(update={"rounds": rounds, "train": train})


def _with_checksum(config: Config) -> Config:
    """Return the config with the checksum of its file of weights; refuse a file that is no longer the same."""
    model = config.model
    if model.weights is None or model.weights.startswith(PREFIX):
        return config
    found = checksum(model.weights)
    if model.weights_sha256 not in (None, found):
        raise ConfigError(
            f"model.weights: {quoted(model.weights)} is no longer the file that the config was made with (its checksum "
            "is not model.weights_sha256); put that file back, or leave model.weights_sha256 out"
        )
    return config.model_copy(update={"model": model.model_copy(update={"weights_sha256": found})})


def twins(config: Config) -> dict[str, Config]:
    """Return the baselines of a run under attack: the run without attackers, and that without a defense as well.

    The goal stays: test accuracy is measured on the same examples, and attack accuracy is the baseline that holds
    without any attacker.
    """
    if not config.is_attacked:
        raise ConfigError("nobody attacks in this config, so it has no twins; leave --twins away")
    nobody = config.threat.model_copy(update={**dict.fromkeys(WHO), "count": 0})
    unattacked = config.model_copy(update={"name": f"{config.name}-unattacked", "threat": nobody})
    plain = unattacked.model_copy(
        update={"name": f"{config.name}-plain", "defense": Named(name="undefended"), "secure": None}
    )
    return (
        {"unattacked": unattacked}
        if config.defense.name == "undefended"
        else {"unattacked": unattacked, "plain": plain}
    )


def dump(config: Config) -> dict[str, Any]:
    """Return the config as a table, with every default written out."""
    return _without_none(config.model_dump(mode="json"))


_MUST_BE = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "tuple_type": "a list of whole numbers",
}


def _sentence(problem: Any) -> str:
    """Return one of pydantic's errors as a sentence for people."""
    path, kind, given = [str(part) for part in problem["loc"]], problem["type"], problem.get("input")
    where = ".".join(path)
    if kind == "extra_forbidden":
        *above, key = path
        return unknown("key" + (f" in [{'.'.join(above)}]" if above else ""), key, _valid_keys(above))
    if kind == "missing":
        return f"{where} is missing; {example(path[0])}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{where} is {quoted(given)}, but must be a table; {example(where)}"
    if kind == "literal_error" and isinstance(given, str):
        return unknown(where, given, re.findall(r"'([^']+)'", problem["ctx"]["expected"]))
    allowed = _MUST_BE.get(kind) or re.sub(r"^(Input should be|Value error,) ", "", problem["msg"])
    return f"{where} is {quoted(given)}, but must be {allowed}"


def _valid_keys(path: Sequence[str]) -> Sequence[str]:
    model: Any = Config
    for part in path:
        annotation = model.model_fields[part].annotation
        model = next(
            (each for each in getattr(annotation, "__args__", ()) if hasattr(each, "model_fields")), annotation
        )
    return list(model.model_fields)


def _from(source: str) -> str:
    return f"{source}: " if source else ""


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _copied(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(item) if isinstance(item, Mapping) else item for key, item in table.items()}


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: item for key, item in table.items() if item is not None}
    return {key: _without_none(item) if isinstance(item, Mapping) else item for key, item in kept.items()}
