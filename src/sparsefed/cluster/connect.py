"""Ray itself: what to install, how to start or join a cluster, and which of its failures pass.

Ray is an extra and slow to import, so it is loaded on first use. A cluster that is started here is this process's own
and ends with it; one that runs already (`ray start`, Slurm, KubeRay) is joined, and left as it is.
"""

from __future__ import annotations

import os
import re
from typing import Any

from sparsefed.core.errors import ConfigError, printable, quoted

INSTALL = "pip install 'sparsefed[ray]'"
STORE = 2**30  # bytes of the object store of a cluster that is started here: two sums a worker are far less
DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no reports to Ray's makers
    "RAY_AUTH_MODE": "token",  # whoever has no token is refused
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # leave CUDA_VISIBLE_DEVICES as it is
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",  # by default workers give way to everything else on their machine
}


def workers_wanted(on: str) -> int | None:
    """Return how many workers `--on` asks for; None: as many as the cluster has room for.

    >>> workers_wanted("ray"), workers_wanted("ray:4")
    (None, 4)
    """
    match = re.fullmatch(r"ray(?::([1-9]\d{0,4}))?", on)
    if match is None:
        raise ConfigError(f"--on is {quoted(on)}, but must be ray, or ray:N for N workers")
    return None if match[1] is None else int(match[1])


def library() -> Any:
    """Return Ray, or raise an error that explains what to install."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)  # read when Ray is imported
    try:
        import ray
    except ImportError:
        raise ConfigError(f"--on ray needs Ray; install it with: {INSTALL}") from None
    return ray


def connect() -> Any:
    """Return Ray with a connection: to the cluster of RAY_ADDRESS, to one on this machine, or to one started now.

    RAY_ADDRESS=local starts one even where another one runs.

    Raises:
        ConfigError: There is no such cluster, or it refuses this process.
    """
    ray = library()
    if ray.is_initialized():
        return ray
    try:
        _join_or_start(ray)
    except Exception as error:  # Ray raises plain ones, such as for a machine too busy to start it in time
        where = os.environ.get("RAY_ADDRESS", "on this machine")
        raise ConfigError(
            f"no Ray cluster could be reached or started ({where}): {printable(error, 200)}; check RAY_ADDRESS and the "
            "token (`ray get-auth-token`), or unset RAY_ADDRESS to start one here"
        ) from error
    return ray


def _join_or_start(ray: Any) -> None:
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "namespace": "sparsefed"}
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        if address != "local":
            ray.init(address=address, **quiet)
            return
    except ConnectionError:
        if "RAY_ADDRESS" in os.environ:
            raise
    ray.init(address="local", include_dashboard=False, object_store_memory=STORE, **quiet)


def lost(ray: Any) -> tuple[type[Exception], ...]:
    """Return the errors of work whose machine or process is gone: the same work may be done elsewhere."""
    known = ray.exceptions
    return (
        known.RayActorError,
        known.WorkerCrashedError,
        known.LocalRayletDiedError,
        known.NodeDiedError,
        known.ObjectLostError,
        known.ObjectStoreFullError,
        known.OutOfMemoryError,
        known.RaySystemError,
        known.RuntimeEnvSetupError,
        known.TaskUnschedulableError,
        known.ActorUnschedulableError,
        known.GetTimeoutError,
    )
