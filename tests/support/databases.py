"""A real PostgreSQL on loopback for tests, from Debian's package, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def programs() -> Path | None:
    """The folder of PostgreSQL's programs; Debian's package puts only clients into the path."""
    known = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (str(known[-1]) if known else None)
    return Path(found).resolve().parent if found else None


def lacking() -> str:
    """Why there is no PostgreSQL to test with; '' if there is."""
    if programs() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if find_spec("psycopg") is None:
        return "PostgreSQL's driver is not installed: pip install 'sparsefed[postgresql]'"
    if os.getuid() == 0 and "postgres" not in (entry.pw_name for entry in pwd.getpwall()):
        return "PostgreSQL does not run as root, and there is no user postgres"
    return ""


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty database, whose server ends with the block."""
    folder, owner = programs(), "postgres" if os.getuid() == 0 else None
    assert folder is not None
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as place:
        if owner:
            shutil.chown(place, owner)
        subprocess.run(
            [folder / "initdb", "-D", f"{place}/data", "-A", "trust", "-U", "tester", "--no-sync"],
            user=owner, cwd=place, check=True, capture_output=True,
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = subprocess.Popen(
            [folder / "postgres", "-D", f"{place}/data", "-p", str(port), "-h", "127.0.0.1", "-k", place, "-F"],
            user=owner, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _await(folder, port)
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(30)


def _await(folder: Path, port: int) -> None:
    asked = [str(folder / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    until = time.monotonic() + 30
    while subprocess.run(asked, check=False).returncode != 0:
        assert time.monotonic() < until, "PostgreSQL did not start"
        time.sleep(0.1)
