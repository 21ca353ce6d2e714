"""Run folders: what a run writes, and how it is resumed.

    config.toml             the requested config, with every default written out
    manifest.json           when, where, with which versions, and how far it got
    metrics.jsonl           one line per round
    checkpoint.safetensors  the whole server state: parameters and the defense's memory
    previous.safetensors    the checkpoint before that

A checkpoint takes its place in a single step, after the metrics up to it have reached the disk. So a process that is
killed at any moment leaves a folder from which `resume` continues, bit for bit the run it would have been. Every file
carries a checksum or has one in the manifest; a damaged checkpoint is replaced by the previous one, with a warning, and
other damage is an error, never a shorter run. No result is ever deleted unless the caller requests it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import torch
from torch import Tensor

from sparsefed import trust
from sparsefed.core import toml
from sparsefed.core.errors import RunError
from sparsefed.core.round import RoundReport, ServerState
from sparsefed.core.types import RunRecord
from sparsefed.runs import checkpoint
from sparsefed.runs.disk import (
    CHECKPOINT,
    CONFIG,
    MANIFEST,
    METRICS,
    TEXT_LIMIT,
    appending,
    disk,
    is_locked,
    line,
    locked,
    open_plain,
    read_bytes,
    record_of,
    write_atomically,
)
from sparsefed.runs.provenance import commit, manifest, now, versions

PREVIOUS = "previous.safetensors"
MOST_THREADS = 1024  # that a manifest may ask for
_HEADER = "sparsefed"
_START_OVER = "delete it and resume: the run then starts from round 1"

logger = logging.getLogger(__name__)


# --- making ----------------------------------------------------------------------------------------------------------


def create(folder: Path, config: Mapping[str, Any], overwrite: bool = False) -> None:
    """Create a run folder with its config and manifest; refuse to replace a run unless `overwrite` is set."""
    refuse_overwriting(folder, config, overwrite)
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), disk(folder):
        # The manifest is replaced last: if killed in between, the run can be resumed from round 1.
        for name in (CHECKPOINT, PREVIOUS, METRICS):
            (folder / name).unlink(missing_ok=True)
        if is_run(folder):
            _write_manifest(folder, manifest(config))  # has no checksum of a config yet
        write_atomically(folder / CONFIG, toml.dumps(config).encode())
        _write_manifest(folder, manifest(config) | {"config": _fingerprint(folder)})
    trust.remember(config)


def refuse_overwriting(folder: Path, config: Mapping[str, Any], overwrite: bool = False) -> None:
    """Raise RunError if `create` would destroy something: a run (unless `overwrite`) or a foreign config."""
    if is_run(folder) or (folder / CHECKPOINT).exists() or (folder / METRICS).exists():
        if not overwrite:
            raise RunError(
                f"{folder} already holds a run; continue it with `sparsefed resume {folder}`, choose another folder "
                "with --out, or start it anew with --overwrite"
            )
    elif (folder / CONFIG).exists() and load_config(folder) != config:
        raise RunError(f"{folder / CONFIG} is there already and belongs to no run; choose another folder with --out")


def is_run(folder: Path) -> bool:
    """Return whether the folder holds a run."""
    return (folder / MANIFEST).is_file()


def unfinished(wanted: Mapping[Path, Mapping[str, Any]]) -> dict[Path, bool]:
    """Return the runs still to be done, and whether each must be created first; refuse those of another config."""
    standings = {folder: standing(folder, config) for folder, config in wanted.items()}
    for folder, state in standings.items():
        if state == "another":
            raise RunError(f"{folder} holds a run of another config; move it away, or choose another folder with --out")
    return {folder: state == "nothing" for folder, state in standings.items() if state != "finished"}


def standing(folder: Path, config: Mapping[str, Any]) -> Literal["nothing", "another", "finished", "unfinished"]:
    """Return what a folder holds of a run: nothing, a run of another config, or this one, finished or not."""
    if not is_run(folder):
        return "nothing"
    if anywhere(load_config(folder)) != anywhere(config):
        return "another"
    return "finished" if _load_manifest(folder).get("status") == "finished" else "unfinished"


# --- reading ---------------------------------------------------------------------------------------------------------


def load_run(folder: Path) -> RunRecord:
    """Load a run folder, finished or not; a run whose process was killed has the status 'interrupted'."""
    config, manifest = load_config(folder), _load_manifest(folder)
    if manifest.get("status") == "running" and not is_locked(folder):
        manifest["status"] = "interrupted"
    rows = tuple(_rows(folder, manifest.get("round", 0)))
    return RunRecord(str(config.get("name") or folder.name), config, manifest, rows, folder)


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders among these paths and directly below them, in order of creation; raise if none exist."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise RunError(f"there is no folder {path}; give folders that `sparsefed run` or `demo` made")
        below = [manifest.parent for manifest in path.glob("*/" + MANIFEST)]
        found += [path] if is_run(path) else sorted(below, key=lambda folder: (_created(folder), folder))
    if not found:
        raise RunError(f"no run in {', '.join(map(str, paths))}; give folders that `sparsefed run` or `demo` made")
    return found


def load_config(folder: Path) -> dict[str, Any]:
    """Load the config a run was started with."""
    path = folder / CONFIG
    if not path.is_file():
        raise RunError(f"{folder} is not a run folder (it has no {CONFIG}); give a folder that `sparsefed run` made")
    try:
        table = tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}); put back what it was, or start the run anew") from error
    if is_run(folder):
        _require_unchanged(folder, _load_manifest(folder).get("config"))
    return table


def load_state(folder: Path) -> ServerState | None:
    """Load the state at the last undamaged checkpoint; return None if the run did not reach its first."""
    damaged: list[str] = []
    for path in (folder / CHECKPOINT, folder / PREVIOUS):
        if not os.path.lexists(path):
            continue
        try:
            tensors, header = checkpoint.loads(read_bytes(path, limit=None), _HEADER, ("round", "config"))
            state = _state(tensors, header["round"])
        except (ValueError, KeyError) as error:
            damaged.append(f"{path} is damaged ({error})")
            continue
        _require_unchanged(folder, str(header["config"]))
        if damaged:
            logger.warning("%s; going on from the previous checkpoint, of round %d", damaged[0], state.round)
        return state
    if damaged:
        raise RunError(f"{', and '.join(damaged)}; {_START_OVER}")
    return None


_DEVICE = "device."  # before the number of a device, for what the device itself keeps


def _state(tensors: Mapping[str, Tensor], round: Any) -> ServerState:
    if not isinstance(round, int) or round < 0:
        raise ValueError("its round is impossible")
    devices = {name.removeprefix(_DEVICE): tensor for name, tensor in tensors.items() if name.startswith(_DEVICE)}
    others = {name: tensor for name, tensor in tensors.items() if name != "theta" and not name.startswith(_DEVICE)}
    defense = {name.removeprefix("defense."): tensor for name, tensor in others.items()}
    return ServerState(round, tensors["theta"], defense, devices)


def _tensors(state: ServerState) -> dict[str, Tensor]:
    """Return the state as it is saved: in host memory, so that any machine can go on from it."""
    defense = {f"defense.{name}": tensor for name, tensor in state.defense.items()}
    devices = {f"{_DEVICE}{name}": tensor for name, tensor in state.devices.items()}
    return {name: tensor.cpu() for name, tensor in {"theta": state.theta, **defense, **devices}.items()}


def _require_unchanged(folder: Path, fingerprint: str | None) -> None:
    """Refuse a run whose config is not the one it began with; runs of early versions have no record of that."""
    if fingerprint is not None and fingerprint != _fingerprint(folder):
        raise RunError(
            f"{folder / CONFIG} was changed after the run had begun, so going on would be neither the one run nor the "
            f"other; undo the change, or run it elsewhere: `sparsefed run {folder / CONFIG} --out FOLDER`"
        )


def _fingerprint(folder: Path) -> str:
    return hashlib.sha256(read_bytes(folder / CONFIG)).hexdigest()


def _load_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise RunError(f"{folder} is not a run folder (it has no {MANIFEST}); give a folder that `sparsefed run` made")
    try:
        manifest = dict(json.loads(read_bytes(path).decode()))
        _check_manifest(manifest)
    except (ValueError, TypeError, RecursionError) as error:
        lost = f"delete it and `sparsefed resume {folder}`: only the note of where and when the run began is lost"
        raise RunError(f"{path} is damaged ({error}); {lost}") from error
    return manifest


_TYPES: dict[str, type] = {
    **dict.fromkeys(("created", "status", "command", "privacy", "config"), str),
    **dict.fromkeys(("round", "parameters"), int),
    **dict.fromkeys(("versions", "machine", "task"), dict),
    "resumed": list,
}


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise ValueError if the manifest does not match its checksum, or has values of wrong types."""
    checksum = manifest.pop("sha256", None)
    if checksum != _checksum(manifest) and (checksum is not None or "config" in manifest):
        raise ValueError("its checksum does not match")  # early versions wrote neither that nor the config's
    for key, wanted in _TYPES.items():
        if key in manifest and not isinstance(manifest[key], wanted):
            raise ValueError(f"{key} is no {wanted.__name__}")
    if not 0 <= manifest.get("round", 0) < 2**53:
        raise ValueError("its round is impossible")


def _checksum(manifest: Mapping[str, Any]) -> str:
    """Return the checksum of what runs write into a manifest; remarks that people add to it do not count."""
    ours = {key: manifest[key] for key in (*_TYPES, "rounds", "seed", "commit") if key in manifest}
    return hashlib.sha256(json.dumps(ours).encode()).hexdigest()


def _created(folder: Path) -> str:
    return str(_load_manifest(folder).get("created", ""))


def _rows(folder: Path, least: int) -> Iterator[dict[str, Any]]:
    """Yield the rounds in metrics.jsonl, up to an incomplete line; raise if fewer than `least`."""
    path, done, checked = folder / METRICS, 0, None
    if os.path.lexists(path):
        with open_plain(path) as file:
            while (record := record_of(file.readline(TEXT_LIMIT))) is not None:
                row, has_checksum = record
                if row.get("round") != done + 1 or not all(_is_metric(key, value) for key, value in row.items()):
                    break
                if checked not in (None, has_checksum):
                    break
                done, checked = done + 1, has_checksum
                yield row
    if done < least:
        both = "delete it and all checkpoints (*.safetensors), then resume: the run then starts from round 1"
        raise RunError(f"{path} is damaged (line {done + 1} is not round {done + 1} of the {least} saved); {both}")


def _is_metric(key: str, value: Any) -> bool:
    """Return whether a value can be a round's: a number, None for one that is not finite, for each class a list."""
    values = value if key == "class_accuracy" else [value]
    return isinstance(values, list) and all(each is None or isinstance(each, int | float) for each in values)


# --- running ---------------------------------------------------------------------------------------------------------


def execute(
    folder: Path,
    begin: ServerState,
    reports: Callable[[ServerState], Iterator[RoundReport]],
    checkpoint_every: int,
    watch: Callable[[RoundReport], None] = lambda report: None,  # noqa: ARG005
    conclude: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Run from the folder's last checkpoint (a new run from `begin`) to the end.

    Ctrl-C, and any error, is raised again after the last complete round has been saved.

    Args:
        folder: the run folder.
        begin: the state before round 1.
        reports: yields the reports of the rounds that follow a state.
        checkpoint_every: rounds between checkpoints.
        watch: called with the report of every round, after it has been written.
        conclude: returns facts for the manifest of a run that has just finished.
    """
    load_config(folder)
    with locked(folder):
        saved = last = _last_saved(folder, begin)
        _forget_unsaved(folder, saved.round)
        note(folder, status="running", round=saved.round, parameters=len(begin.theta), **_resumed(folder, saved.round))
        status = "interrupted"
        with _threads(folder), appending(folder) as metrics:
            try:
                for report in reports(last):
                    _append(folder, metrics, report)
                    last = report.state
                    if last.round % checkpoint_every == 0:
                        saved = _checkpoint(folder, metrics, last)
                    watch(report)
                status = "finished"
            finally:
                if last is not saved:
                    _checkpoint(folder, metrics, last)
                note(folder, status=status, round=last.round, **(conclude() if status == "finished" else {}))


@contextmanager
def _threads(folder: Path) -> Iterator[None]:
    """Compute with as many threads as the run began with: torch's sums, and so the bits, depend on their number."""
    before = torch.get_num_threads()
    begun = _load_manifest(folder).get("machine", {}).get("threads")
    torch.set_num_threads(begun if isinstance(begun, int) and 1 <= begun <= MOST_THREADS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save(
    folder: Path,
    table: Mapping[str, Any],
    facts: Mapping[str, Any],
    state: ServerState,
    rows: Sequence[Mapping[str, Any]],
    rounds: int,
    overwrite: bool = False,
) -> None:
    """Write the current state of a run to its folder; refuse a folder that holds a run of another config.

    Args:
        folder: the run folder; created if missing.
        table: the config of the run.
        facts: facts about the task, for the manifest.
        state: the server state to checkpoint.
        rows: the metrics of all rounds so far.
        rounds: the total number of rounds, which decides whether the run is finished.
        overwrite: replace whatever run the folder holds.
    """
    if overwrite or not is_run(folder):
        create(folder, table, overwrite)
    _require_config(folder, table)
    with locked(folder):
        with disk(folder):
            write_atomically(folder / METRICS, b"".join(line(row) for row in rows))
            with (folder / METRICS).open("rb+") as metrics:
                _checkpoint(folder, metrics, state)
        status = "finished" if state.round >= rounds else "interrupted"
        note(folder, task=dict(facts), status=status, round=state.round, parameters=len(state.theta))


def restore(folder: Path, table: Mapping[str, Any], begin: ServerState) -> tuple[ServerState, list[Mapping[str, Any]]]:
    """Return the state and the rows of a run at its last checkpoint; refuse a run of another config."""
    _require_config(folder, table)
    state = _last_saved(folder, begin)
    return state, [row for row in _rows(folder, state.round) if row["round"] <= state.round]


def _require_config(folder: Path, table: Mapping[str, Any]) -> None:
    if anywhere(load_config(folder)) != anywhere(table):
        raise RunError(f"{folder} holds a run of another config; choose another folder, or overwrite it")


def anywhere(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without its device: a checkpoint of one device goes on on another."""
    train = {key: value for key, value in table.get("train", {}).items() if key != "device"}
    return {**table, "train": train}


def _last_saved(folder: Path, begin: ServerState) -> ServerState:
    state = load_state(folder)
    if state is None:
        return begin
    if not goes_on(_tensors(state), _tensors(begin)):
        raise RunError(
            f"{folder / CHECKPOINT} is not of this run: it holds {_described(state)}, but the config makes "
            f"{_described(begin)}; put the right one back, or {_START_OVER}"
        )
    return state


def goes_on(saved: Mapping[str, Tensor], begin: Mapping[str, Tensor]) -> bool:
    """Return whether the saved tensors can stem from the initial ones.

    They must be the same tensors, except those kept per device (named with a final number) and lists that begin empty.
    """
    lasting = {name for name in saved if not name.rpartition(".")[2].isdecimal()}
    return lasting == begin.keys() and all(_alike(saved[name], begin[name]) for name in begin)


def _alike(saved: Tensor, begin: Tensor) -> bool:
    if saved.dtype != begin.dtype or saved.dim() != begin.dim():
        return False
    return all(size in (now, 0) for now, size in zip(saved.shape, begin.shape, strict=True))


def _described(state: ServerState) -> str:
    return f"{len(state.theta):,} parameters with {', '.join(sorted(state.defense)) or 'no state'}"


def _append(folder: Path, metrics: IO[bytes], report: RoundReport) -> None:
    with disk(folder):
        metrics.write(line({**report.metrics, "seconds": round(report.seconds, 4)}))
        metrics.flush()


def _checkpoint(folder: Path, metrics: IO[bytes], state: ServerState) -> ServerState:
    """Write a checkpoint, after syncing the metrics: rounds before a checkpoint are always on the disk."""
    header = {"round": state.round, "config": _fingerprint(folder)}
    content = checkpoint.dumps(_tensors(state), header, _HEADER)
    with disk(folder):
        os.fsync(metrics.fileno())
        write_atomically(folder / CHECKPOINT, content, keep=folder / PREVIOUS)
    return state


def _forget_unsaved(folder: Path, saved: int) -> None:
    """Remove the rounds after the last checkpoint from the metrics; they are run again."""
    kept = [line(row) for row in _rows(folder, saved) if row["round"] <= saved]
    with disk(folder):
        write_atomically(folder / METRICS, b"".join(kept))


def note(folder: Path, **facts: Any) -> None:
    """Add facts to the manifest, keeping those already there; recreate a lost manifest."""
    lost = not is_run(folder)
    known = manifest(load_config(folder)) | {"config": _fingerprint(folder)} if lost else _load_manifest(folder)
    with disk(folder):
        _write_manifest(folder, {**known, **facts})


def _resumed(folder: Path, round: int) -> dict[str, Any]:
    """Return the manifest's list of resumptions with this one added: other versions may give other bits."""
    if round == 0 or not is_run(folder):
        return {}
    again = {"at": now(), "round": round, "versions": versions(), "commit": commit()}
    return {"resumed": [*_load_manifest(folder).get("resumed", []), again]}


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    content = json.dumps({**manifest, "sha256": _checksum(manifest)}, indent=2)
    write_atomically(folder / MANIFEST, (content + "\n").encode())
