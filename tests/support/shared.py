"""Folders that several tests read and that are expensive to make, also where tests are spread over processes."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shared:
    """A place for such folders, one per run of the tests."""

    place: Path

    def folder(self, name: str, make: Callable[[Path], Any] = lambda _: None) -> tuple[Path, Any]:
        """Return a folder and what `make(folder)` returned (as JSON), made by the first process that wants it.

        Others wait for it. Where `make` fails, each process that wants the folder makes it anew and sees the error.
        What is in it is for reading only: whoever changes it works on a copy.
        """
        self.place.mkdir(parents=True, exist_ok=True)
        result, number = self.place / f"{name}.json", 1
        with (self.place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                while (self.place / f"{name}-{number}").exists():
                    number += 1
                folder = self.place / f"{name}-{number}"
                folder.mkdir()
                result.write_text(json.dumps({"folder": str(folder), "value": make(folder)}))
            made = json.loads(result.read_text())
        return Path(made["folder"]), made["value"]
