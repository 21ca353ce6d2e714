"""A federation of real processes on this machine: a SuperLink and SuperNodes with TLS and keys, to rehearse with.

    with LocalFederation(Path("scratch"), nodes=10) as federation:
        federation.run(app)

Everything is on the loopback interface and below one folder. Processes are ended by their own ids when it closes.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sparsefed.core.errors import RunError

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
LINK = "local"
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

    # --- beginning and end -------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalFederation:
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_certificates(self.folder)
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
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process that this federation started, and what they started."""
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
            "flower-superlink",
            *[str(self.folder / part) if part.endswith((".pem", ".key")) else part for part in secure],
            "--enable-supernode-auth",
            *("--host", HOST, "--port", str(self._ports[0]), "--database", str(self.folder / "link.db")),
            "--disable-runtime-dependency-installation",
        )
        _await_port(self._ports[0], self.link, self._wait, self.folder / "superlink.log")

    def start_node(self, i: int) -> None:
        """Start a SuperNode, with the key that is its identity."""
        config = f"partition-id={i} {self._node_config.get(i, '')}".strip()
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
        """End a SuperNode, and the client that it runs, by SIGKILL."""
        _end(self.supernodes.pop(i))

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
        answer = self.flwr("run", str(app), LINK, *override, "--format", "json")
        if not answer.get("success") or "run-id" not in answer:
            raise RunError(f"Flower did not start the app: {answer}")
        return str(answer["run-id"])

    def wait(self, run: str, seconds: float) -> str:
        """Return the status of a run once it has ended.

        Raises:
            RunError: if it goes on after these seconds.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.server_apps() and (status := self.status(run)).startswith("finished"):
                return status
            time.sleep(1.0)
        raise RunError(f"run {run} is still going on after {seconds:g} s; look into {self.folder / 'superlink.log'}")

    def status(self, run: str) -> str:
        """Return the status of a run."""
        runs = self.flwr("list", LINK, "--run-id", run, "--format", "json").get("runs", [])
        return str(runs[0]["status"]) if runs else "unknown"

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
            _write_key(self.folder / f"node-{i}")
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
                [str(BIN / command), *args],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that what it starts can be ended with it
            )

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
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
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _await_port(port: int, process: subprocess.Popen[bytes], seconds: float, log: Path) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection((HOST, port), 1):
            return
        time.sleep(0.2)
    raise RunError(f"the SuperLink did not come up: {log.read_text()[-500:]}")


# --- certificates and keys -------------------------------------------------------------------------------------------


def _write_certificates(folder: Path) -> None:
    """Write an authority of our own and the SuperLink's certificate by it, unless they are there."""
    if (folder / "link.pem").exists():
        return
    authority, link = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    _write_secret(folder / "link.key", link, forms.PrivateFormat.PKCS8)
    own = _certificate("sparsefed rehearsal", authority, "sparsefed rehearsal", authority, is_authority=True)
    issued = _certificate(HOST, link, "sparsefed rehearsal", authority, is_authority=False)
    (folder / "ca.pem").write_bytes(own.public_bytes(forms.Encoding.PEM))
    (folder / "link.pem").write_bytes(issued.public_bytes(forms.Encoding.PEM))


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    by: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    now = datetime.datetime.now(datetime.UTC)
    hosts: Sequence[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(by, hashes.SHA384())
    )


def _write_key(path: Path) -> None:
    """Write a node's key pair, unless it is there."""
    if path.with_suffix(".pub").exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path.with_suffix(".key"), key, forms.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: forms.PrivateFormat) -> None:
    content = key.private_bytes(forms.Encoding.PEM, form, forms.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
