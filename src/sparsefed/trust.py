"""What is code and what is data: which configs may name functions of their own to be imported.

A name such as `"my_package.rules:my_rule"` in a config is code: using it imports the module and calls the function. A
config that the user wrote may name any. What a command wrote (the config.toml of a run folder, `strongest.toml` of a
tuning, `recommended.toml` of an audit) may have come from somebody else, so the functions it names are imported only if
this machine wrote that config itself, or if the user consents (`--trust`, or `with trust.consent():`).

Modules beside a config that the user wrote can be imported without PYTHONPATH (`import_from`); those beside a config
that a command wrote cannot, whoever consents: for these the folders that the user's own config was in are remembered.

Everything else in a folder is data: metrics, manifests, checkpoints, results and studies are parsed, never executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from sparsefed.core.errors import ConfigError

_NAME = re.compile(r"[^:\s]+:[^:\s]+")  # module:function
_DEVICE = "train.device"  # "cuda:1" is one, not a function
_LIVE = "live:"  # names an object of this process, which no file can bring along
_WRITTEN_BY_COMMANDS = ("strongest.toml", "recommended.toml")
_BESIDE_THEM = ("manifest.json", "audit.json", "study.json", "study.db")

_folders: list[str] = []  # of modules that the user's configs name
_consented: ContextVar[bool] = ContextVar("consented", default=False)


@contextmanager
def consent(given: bool = True) -> Iterator[None]:
    """Within the block, import the functions that configs of run folders name, whoever wrote them."""
    token = _consented.set(given or _consented.get())
    try:
        yield
    finally:
        _consented.reset(token)


def allow(given: bool = True) -> None:
    """Consent for the rest of this process, as `--trust` does."""
    _consented.set(given or _consented.get())


def code_in(table: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Return the names in a config that are code, by key.

    >>> code_in({"defense": {"name": "my_rules:median"}, "model": {"name": "cnn"}})
    {'defense.name': 'my_rules:median'}
    """
    names: dict[str, str] = {}
    for key, value in table.items():
        parts = value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if isinstance(part, Mapping):
                names |= code_in(part, f"{path}{key}.")
            elif f"{path}{key}" == _DEVICE:
                continue
            elif isinstance(part, str) and _NAME.fullmatch(part) and not part.startswith(_LIVE):
                names[f"{path}{key}"] = part
    return names


def require(table: Mapping[str, Any], source: Path) -> None:
    """Refuse a config out of a folder that names code, unless this machine wrote it or the user consents.

    Args:
        table: the config as it was read.
        source: the file it comes from, for the message.

    Raises:
        ConfigError: names the functions that would be imported and called.
    """
    names = code_in(table)
    known = _remembered().get(_digest(table)) if names else None
    for folder in known or ():
        import_from(Path(folder))
    if not names or _consented.get() or known is not None:
        return
    listed = ", ".join(f"{key} = {name!r}" for key, name in list(names.items())[:5])
    raise ConfigError(
        f"{source} names code that would be imported and run ({listed}), and this machine did not write that file; "
        "if you know the code and trust whoever wrote the file, repeat the command with --trust"
    )


def is_written_by_command(file: Path) -> bool:
    """Return whether a config file is the output of a command, so that somebody else may have written it."""
    return file.name in _WRITTEN_BY_COMMANDS or any((file.parent / name).exists() for name in _BESIDE_THEM)


def import_from(folder: Path) -> None:
    """Let names in configs refer to modules in a folder, after all that is installed."""
    if str(folder) not in _folders:
        _folders.append(str(folder))
        sys.path.append(str(folder))


def code_folders() -> list[str]:
    """Return the folders of `import_from`, for processes that run the same configs."""
    return list(_folders)


def remember(table: Mapping[str, Any]) -> None:
    """Record that this machine writes a config that names code, so that it can be resumed without further consent."""
    if not code_in(table) or (digest := _digest(table)) in _remembered():
        return
    with suppress(OSError):  # without the record, resuming requires --trust
        _records().parent.mkdir(parents=True, exist_ok=True)
        with _records().open("a", encoding="ascii") as file:
            file.write(f"{digest} {json.dumps(_folders)}\n")


def _records() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sparsefed" / "trusted_configs"


def _remembered() -> dict[str, list[str]]:
    """Return the digests of the configs that this machine wrote, each with the folders its code was found in."""
    try:
        lines = _records().read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.partition(" ")[::2] for line in lines)
    return {digest: _listed(folders) for digest, folders in pairs}


def _listed(text: str) -> list[str]:
    """Return the folders of a line of the records; none in those of early versions, or where it is damaged."""
    try:
        return [str(folder) for folder in json.loads(text)]
    except (ValueError, TypeError):
        return []


def _digest(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()
