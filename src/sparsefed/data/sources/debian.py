"""A source that is a Debian package, downloaded and unpacked without root and without touching the system.

The system's package lists are used where they exist. Where they are empty or out of date (a fresh container),
`apt-get update` fills private ones in the scratch folder. apt checks signatures; the caller checks the content again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparsefed.data.record import DataFile, Say, Source, SourceError
from sparsefed.data.sources import commands

TOOLS = ("apt-get", "dpkg-deb")
# No sandbox user, who could not write to our folder; no lists in other languages; and a failed update is reported.
MANNERS = (
    "APT::Sandbox::User=root",
    "APT::Update::Error-Mode=any",
    "Acquire::Languages=none",
    "Acquire::Retries=1",
    "Acquire::http::Timeout=30",
    "Acquire::https::Timeout=30",
)


def debian_package(package: str, options: Sequence[str] = ()) -> Source:
    """Return a source of the files inside a package; `options` are more apt settings, as `Key=value`."""

    def bring(files: Sequence[DataFile], scratch: Path, say: Say) -> Iterator[tuple[DataFile, Path]]:
        for tool in TOOLS:
            if shutil.which(tool) is None:
                raise SourceError(f"this machine has no {tool}")
        deb = _download(package, options, scratch, say)
        unpacked = scratch / "unpacked"
        _run(["dpkg-deb", "-x", str(deb), str(unpacked)], scratch)
        deb.unlink()  # frees space for the decompressed files
        for file in files:
            path = next((p for s in ("", ".gz") for p in unpacked.rglob(file.name + s) if p.is_file()), None)
            if path is None:
                raise SourceError(f"{deb.name} holds no {file.name}")
            yield file, path

    return Source(title=f"Debian's package {package}", bring=bring)


def _download(package: str, options: Sequence[str], scratch: Path, say: Say) -> Path:
    """Download the .deb into the scratch folder: by the system's lists if they have it, else by private new ones."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    common = [f"Dir::Cache={scratch / 'cache'}", *MANNERS, *options]
    private = [*common, f"Dir::State={scratch / 'state'}"]
    try:
        say(f"  apt-get download {package}")
        _apt(["download", package], common, scratch)
    except SourceError:
        say("  apt's package lists do not help; getting private new ones")
        _update_and_download(package, private, scratch)
    deb = next(scratch.glob(f"{package}_*.deb"), None)
    if deb is None:
        raise SourceError(f"apt-get download {package} left no file behind")
    return deb


def _update_and_download(package: str, settings: Sequence[str], scratch: Path) -> None:
    """Update private lists, then download even if that failed: another repository may have brought the right list."""
    trouble = ""
    try:
        _apt(["update"], settings, scratch)
    except SourceError as error:
        trouble = f"{error}; then "
    try:
        _apt(["download", package], settings, scratch)
    except SourceError as error:
        raise SourceError(f"{trouble}{error}") from error


def _apt(action: Sequence[str], settings: Sequence[str], scratch: Path) -> None:
    _run(["apt-get", "-q", *(part for setting in settings for part in ("-o", setting)), *action], scratch)


def _run(command: Sequence[str], scratch: Path) -> None:
    commands.run(command, scratch, {"DEBIAN_FRONTEND": "noninteractive"}, marks=["E: "])
