"""Loading of exhibits and the paper's numbers from files; an error names the file and what is wrong in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import ValidationError

from sparsefed.commands.reproduce.exhibit import OWN, SCALES, Exhibit, ExhibitScale, Paper
from sparsefed.core.errors import ConfigError, unknown


def package() -> Traversable:
    """Return the folder of the paper's exhibits; a custom folder has the same two subfolders."""
    return resources.files("sparsefed.commands.reproduce")


def names(folder: Traversable | None = None) -> list[str]:
    """Return the names of all exhibits."""
    place = (folder or package()) / "exhibits"
    files = place.iterdir() if place.is_dir() else ()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def aliases(folder: Traversable | None = None) -> dict[str, list[str]]:
    """Return the exhibits by their places in the paper: `table-2`, `figure-2c`, `appendix-b.7`."""
    found: dict[str, list[str]] = {}
    for name in names(folder):
        for place in re.split(r";", load(name, folder).where):
            for alias in _aliases(place.strip()):
                found.setdefault(alias, []).append(name)
    return found


def _aliases(place: str) -> Iterator[str]:
    """Yield the short names of a place in the paper.

    >>> list(_aliases("Figure 2c, 2d")), list(_aliases("Appendix B.7, attack parameters")), list(_aliases("ours: x"))
    (['figure-2c', 'figure-2d'], ['appendix-b.7'], [])
    """
    parts = re.fullmatch(r"(Table|Figure|Section|Appendix) ([A-Z]?\.?[\d.]+[a-z]?)(?:, ([\d.]+[a-z]?))?(?:,.*)?", place)
    if parts is not None:
        yield from (f"{parts[1]}-{number}".lower() for number in parts.groups()[1:] if number)


def chosen(asked: Sequence[str], folder: Traversable | None = None) -> list[str]:
    """Return the exhibits that are named, by their own names or by their places in the paper."""
    known = aliases(folder)
    return list(dict.fromkeys(name for each in asked for name in known.get(each.lower().replace(" ", "-"), [each])))


def load(name: str, folder: Traversable | None = None) -> Exhibit:
    """Load the exhibit of that name."""
    if name not in names(folder):
        raise ConfigError(
            f"{unknown('exhibit', name, names(folder))}; `sparsefed reproduce --list` describes them, and places in "
            "the paper (table-2, figure-2c) are names too"
        )
    return parse(name, ((folder or package()) / "exhibits" / f"{name}.toml").read_text(encoding="utf-8"))


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
    with one_sentence(source):
        return Exhibit.model_validate({"name": name, **table})


def parse_paper(exhibit: Exhibit, text: str) -> Paper:
    """Parse the paper's numbers from the text of their file, and check every name in it."""
    source = f"the paper's numbers for {exhibit.name}"
    with one_sentence(source):
        paper = Paper.model_validate_json(text)
    for number, row in enumerate(paper.rows, 1):
        for problem in exhibit.unknown_names([row.metric], [row.pick], "cell"):
            raise ConfigError(f"{source}: row {number}: {problem}")
    return paper


@contextmanager
def one_sentence(source: str) -> Iterator[None]:
    """Turn pydantic's errors within the block into a `ConfigError`."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(f"{source}: " + "; ".join(map(_sentence, error.errors()))) from None


def _sentence(problem: Any) -> str:
    """Return one of pydantic's errors as a sentence."""
    where, kind, message = ".".join(map(str, problem["loc"])), problem["type"], problem["msg"]
    if kind == "value_error":
        return ": ".join(filter(None, [where, message.removeprefix("Value error, ")]))
    sentences = {
        "extra_forbidden": f"there is no key {where}; see the exhibits that there are",
        "missing": f"{where} is missing",
        "json_invalid": f"not valid JSON: {message.removeprefix('Invalid JSON: ')}",
    }
    return sentences.get(kind, f"{where or 'it'} must be {message.removeprefix('Input should be ')}")


def scale_of(exhibit: Exhibit, scale: str) -> ExhibitScale:
    """Return the scale of that name."""
    if scale not in (*SCALES, OWN):
        raise ConfigError(unknown("scale", scale, SCALES))
    for name, chosen in exhibit.scales.items():
        if name == scale:
            return chosen
    raise ConfigError(f"exhibit {exhibit.name} has no scale '{scale}'; it has {', '.join(exhibit.scales)}")
