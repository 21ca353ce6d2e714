"""A federation of real processes on this machine: a SuperLink and SuperNodes with TLS and keys, to rehearse with.

    with LocalFederation(Path("scratch"), nodes=10) as federation:
        federation.run(app)

Everything is on the loopback interface and below one folder. Processes are ended by their own ids when it closes. A
SuperNode that ends by itself is started again, as a service manager does: one that was killed is refused by the
SuperLink until its last heartbeat is a minute old, and ends.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsefed.core.errors import RunError
from sparsefed.flower.certificates import HOST, write_certificates, write_key

BIN = Path(sys.executable).parent
LINK = "local"
PORTS = range(20_000, 32_000)  # below those that the system gives to outgoing connections, of which there are many
SILENT, LAST = 20.0, 400  # seconds, and bytes of a log, in which an error is the last thing that a SuperNode said
AGAIN = 10.0  # seconds after which a SuperNode that has ended is started again
ALONE = 3  # seconds without a ServerApp after which Flower is asked for the status of a run, which is slow
# Lets the system end a process when the one that started it is killed: PR_SET_PDEATHSIG, where there is a prctl.
_ENDING_WITH_PARENT = (
    "import ctypes, os, sys; prctl = getattr(ctypes.CDLL(None), 'prctl', None); prctl and prctl(1, 9, 0, 0, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
# `flower-superlink`, whose database waits a minute for its turn: of ten nodes that reply at once on a busy machine,
# some wait longer than Flower's five seconds, and a SuperNode that is refused stops working.
_PATIENT_LINK = (
    "import sys; from flwr.supercore import sql_mixin as sql; "
    "sql.SQLITE_PRAGMAS = (*sql.SQLITE_PRAGMAS, ('busy_timeout', '60000')); "
    "from flwr.superlink.cli import flower_superlink; sys.exit(flower_superlink())"
)
_REGISTER = (
    "import sys; from flwr.cli.app import app; [app(c.split(chr(9)), standalone_mode=False) for c in sys.argv[1:]]"
)


class LocalFederation:
    """A SuperLink and SuperNodes on the loopback interface; a context manager that ends them."""

    def __init__(
        self, folder: Path, nodes: int = 10, *, node_config: Mapping[int, str] | None = None, wait: float = 120.0
    ) -> None:
        """Prepare a federation in a folder.

        Args:
            folder: an empty folder for certificates, keys, logs and Flower's own files.
            nodes: how many SuperNodes.
            node_config: more node config for some of them, as `flower-supernode --node-config` takes it.
            wait: seconds that the processes may take to come up.
        """
        self.folder, self.nodes, self._wait = folder.resolve(), nodes, wait
        self._node_config = dict(node_config or {})
        self._ports = _free_ports(nodes + 1)
        self.link: subprocess.Popen[bytes] | None = None
        self.supernodes: dict[int, subprocess.Popen[bytes]] = {}
        self._changing, self._closed = threading.RLock(), threading.Event()

    # --- beginning and end -------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalFederation:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_certificates(self.folder)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{HOST}:{self._ports[0]}"\n'
            f'root-certificates = "{self.folder / "ca.pem"}"\n'
        )
        try:
            self.start_link()
            self._register()
            for i in range(self.nodes):
                self.start_node(i)
            threading.Thread(target=self._restart_nodes, daemon=True).start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process that this federation started, and what they started."""
        self._closed.set()
        with self._changing:
            for process in [*self.supernodes.values(), *([self.link] if self.link else [])]:
                _end(process)
            self.supernodes.clear()
            self.link = None
        while left := self.processes():  # what the SuperLink started runs in sessions of its own
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    # --- processes ---------------------------------------------------------------------------------------------------

    def start_link(self) -> None:
        """Start the SuperLink and wait until it answers; its database stays from one start to the next."""
        secure = ["--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "link.pem", "--ssl-keyfile", "link.key"]
        self.link = self._start(
            "superlink",
            Path(sys.executable).name,
            *("-c", _PATIENT_LINK),
            *[str(self.folder / part) if part.endswith((".pem", ".key")) else part for part in secure],
            "--enable-supernode-auth",
            *("--host", HOST, "--port", str(self._ports[0])),
            *("--database", f"sqlite:///{self.folder / 'link.db'}"),
            "--disable-runtime-dependency-installation",
        )
        _await_port(self._ports[0], self.link, self._wait, self.folder / "superlink.log")

    def start_node(self, i: int) -> None:
        """Start a SuperNode, with the key that is its identity."""
        config = f"partition-id={i} {self._node_config.get(i, '')}".strip()
        with self._changing:
            self.supernodes[i] = self._start(
                f"node-{i}",
                "flower-supernode",
                *("--root-certificates", str(self.folder / "ca.pem"), "--superlink", f"{HOST}:{self._ports[0]}"),
                *("--auth-supernode-private-key", str(self.folder / f"node-{i}.key")),
                *("--host", HOST, "--port", str(self._ports[i + 1]), "--node-config", config),
            )

    def kill_link(self) -> None:
        """End the SuperLink by SIGKILL; a ServerApp that it started notices, and ends too."""
        assert self.link is not None
        _end(self.link)

    def kill_server_app(self) -> bool:
        """End the ServerApp by SIGKILL; return whether there was one."""
        pids = self.server_apps()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def server_apps(self) -> list[int]:
        """Return the ids of the living ServerApps; asking Flower for the status of a run takes far longer."""
        return [pid for pid, command in self.processes().items() if "flwr-serverapp" in command]

    def processes(self) -> dict[int, str]:
        """Return the living processes of this federation, by id, with their commands; they share its Flower folder."""
        ours = f"FLWR_HOME={self.folder / 'flwr'}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if ours in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def kill_node(self, i: int) -> None:
        """End a SuperNode, and the client that it runs, by SIGKILL; it stays dead until `start_node`."""
        with self._changing:
            _end(self.supernodes.pop(i))

    def _restart_nodes(self) -> None:
        """Start SuperNodes again that have ended by themselves, until the federation is closed."""
        while not self._closed.wait(AGAIN):
            with self._changing:
                for i in [i for i, process in self.supernodes.items() if self._has_stopped(i, process)]:
                    if not self._closed.is_set():
                        _end(self.supernodes[i])
                        self.start_node(i)

    def _has_stopped(self, i: int, process: subprocess.Popen[bytes]) -> bool:
        """Return whether a SuperNode has ended, or has given up: on an error of the SuperLink it only stops working."""
        log = self.folder / f"node-{i}.log"
        silent = time.time() - log.stat().st_mtime > SILENT
        return process.poll() is not None or (silent and b"ERROR" in log.read_bytes()[-LAST:])

    # --- runs --------------------------------------------------------------------------------------------------------

    def run(self, app: Path, seconds: float = 300.0, **config: Any) -> str:
        """Run an app to its end and return its status: "finished:completed", or what Flower calls it otherwise."""
        return self.wait(self.submit(app, **config), seconds)

    def submit(self, app: Path, **config: Any) -> str:
        """Start an app and return the id of its run.

        Raises:
            RunError: if Flower refuses it.
        """
        given = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        override = ["--run-config", given] if given else []
        answer = self.flwr("run", str(app.resolve()), LINK, *override, "--format", "json")
        if not answer.get("success") or "run-id" not in answer:
            raise RunError(f"Flower did not start the app: {answer}")
        return str(answer["run-id"])

    def wait(self, run: str, seconds: float, watch: Callable[[], None] = lambda: None) -> str:
        """Return the status of a run once it has ended; call `watch` every second until then.

        Raises:
            RunError: if it goes on after these seconds.
        """
        until, alone = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            watch()
            alone = 0 if self.server_apps() else alone + 1
            if alone >= ALONE and (status := self.status(run)).startswith("finished"):
                return status
            time.sleep(1.0)
        raise RunError(f"run {run} is still going on after {seconds:g} s; look into {self.folder / 'superlink.log'}")

    def status(self, run: str) -> str:
        """Return the status of a run."""
        runs = self.flwr("list", LINK, "--run-id", run, "--format", "json").get("runs", [])
        return str(runs[0]["status"]) if runs else "unknown"

    def node_ids(self) -> list[int]:
        """Return the ids under which the SuperLink knows the nodes, in their order."""
        nodes = self.flwr("supernode", "list", LINK, "--format", "json").get("nodes", [])  # as they were registered
        return [int(node["node-id"]) for node in nodes]

    def flwr(self, *args: str) -> dict[str, Any]:
        """Return the answer of a `flwr` command in JSON."""
        done = subprocess.run(
            [str(BIN / "flwr"), *args], cwd=self.folder, env=self._environment(), capture_output=True, text=True
        )
        with suppress(ValueError):
            answer = json.loads(done.stdout)
            return answer if isinstance(answer, dict) else {"answer": answer}
        return {"success": False, "message": (done.stdout + done.stderr).strip()[-500:]}

    # --- inside ------------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        """Make the keys of the nodes known to the SuperLink."""
        commands = [
            "\t".join(("supernode", "register", str(self.folder / f"node-{i}.pub"), LINK))
            for i in range(self.nodes)
            if not (self.folder / f"node-{i}.pub").exists()
        ]
        for i in range(self.nodes):
            write_key(self.folder / f"node-{i}")
        if not commands:
            return
        done = subprocess.run(
            [sys.executable, "-c", _REGISTER, *commands], env=self._environment(), capture_output=True, text=True
        )
        if done.returncode:
            raise RunError(f"the nodes could not be registered: {(done.stdout + done.stderr).strip()[-500:]}")

    def _start(self, name: str, command: str, *args: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-ISc", _ENDING_WITH_PARENT, str(BIN / command), *args],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that what it starts can be ended with it
            )

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)  # every message starts a Python, which would compile everything anew
        return {
            **kept,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
        }


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_ports(count: int) -> list[int]:
    free: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with suppress(OSError), socket.socket() as trial:
            trial.bind((HOST, port))
            free.append(port)
        if len(free) == count:
            return free
    raise RunError(f"{count} ports between {PORTS.start} and {PORTS.stop} are needed, and {len(free)} are free")


def _await_port(port: int, process: subprocess.Popen[bytes], seconds: float, log: Path) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection((HOST, port), 1):
            return
        time.sleep(0.2)
    raise RunError(f"the SuperLink did not come up: {log.read_text()[-500:]}")
