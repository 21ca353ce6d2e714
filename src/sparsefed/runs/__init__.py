"""Run folders: creating, reading, resuming, and the single entry point for running into one."""

from __future__ import annotations

from sparsefed.runs.disk import (
    CHECKPOINT,
    CONFIG,
    MANIFEST,
    METRICS,
    line,
    locked,
    read_bytes,
    record_of,
    write_all,
    write_atomically,
)
from sparsefed.runs.folder import (
    create,
    execute,
    find,
    is_run,
    load_config,
    load_run,
    load_state,
    note,
    refuse_overwriting,
    restore,
    save,
    unfinished,
)
from sparsefed.runs.naming import free_folder, named_after
from sparsefed.runs.provenance import dtype_of
from sparsefed.runs.run import run

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "MANIFEST",
    "METRICS",
    "create",
    "dtype_of",
    "execute",
    "find",
    "free_folder",
    "is_run",
    "line",
    "load_config",
    "load_run",
    "load_state",
    "locked",
    "named_after",
    "note",
    "read_bytes",
    "record_of",
    "refuse_overwriting",
    "restore",
    "run",
    "save",
    "unfinished",
    "write_all",
    "write_atomically",
]
