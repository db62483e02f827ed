"""Start, probe and stop a local control plane; kill or restart single components.

A control plane has its own certificate authority. Keys are EC P-256. Its certificates are valid for
ten years, longer than any control plane is kept.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cryptography.hazmat.primitives.serialization import PrivateFormat

from optsched.formats.files.x509 import Authority, Credential, generate_key, key_pem
from optsched.local import processes
from optsched.local.assets import locked
from optsched.local.components import (
    API_SERVER,
    COMPONENTS,
    ETCD,
    IDENTITIES,
    KWOK,
    WITH_PORT,
    Layout,
    Lifetime,
    Options,
    State,
    commands,
)
from optsched.local.kubectl import Kubectl, install_crds
from optsched.local.processes import choose_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.local.assets import Assets, Progress

READY_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 2.0
PROBE_INTERVAL_S = 0.05
GRACE_S = 10.0
LOG_LINES = 15
MAX_SOCKET_PATH = 107


class PlaneError(Exception):
    """Raised if a control plane cannot be started or used; the message quotes a component's log."""


class ControlPlane:
    """A control plane with all its files in one directory; any process can attach to it.

    As a context manager, a ControlPlane object stops the control plane at the end of the block.

    Attributes
    ----------
    directory
        The directory that holds the control plane's files.
    server
        The address of the API server.
    kubeconfig
        The path of the administrator's kubeconfig.
    kubectl
        A kubectl caller that uses the administrator's kubeconfig.
    components
        The names of the control plane's components, in start order.
    definitions
        The names of the CustomResourceDefinitions that `start` installed.
    """

    def __init__(self, directory: Path, state: State) -> None:
        self.layout = Layout(directory)
        self.directory = directory
        self.server = state.server
        self.kubeconfig = self.layout.kubeconfig("admin")
        self.kubectl = Kubectl(Path(state.kubectl), self.kubeconfig)
        self.components = tuple(name for name in COMPONENTS if name in state.commands)
        self._state = state
        self._spawned: dict[str, int] = {}
        self._owner: Owner | None = None
        self.definitions: tuple[str, ...] = ()

    @classmethod
    def start(
        cls,
        directory: Path,
        assets: Assets,
        options: Options | None = None,
        *,
        on_progress: Progress = lambda _: None,
    ) -> ControlPlane:
        """Start every component and return once all are ready, after about three seconds.

        If a control plane was started in the directory before, its objects, its certificates and
        those of its ports that are free are kept. Raises PlaneError if a control plane already runs
        in the directory or a component fails, and KubectlError if the API server rejects a
        CustomResourceDefinition. After an error, no component is left running.
        """
        options = options or Options()
        layout = Layout(directory.absolute())
        with locked(layout.lock, lambda: on_progress("waiting for another start")):
            state = _prepare(layout, assets, options)
            plane = cls(layout.directory, state)
            if options.lifetime is Lifetime.OWNED:
                plane._owner = Owner(layout)
            try:
                # All other components are clients of the API server and start concurrently.
                for wave in ((ETCD,), (API_SERVER,), options.components[2:]):
                    on_progress(f"starting {', '.join(wave)}")
                    plane._start(wave)
                    if API_SERVER in wave and options.definitions is not None:
                        on_progress("installing the resource definitions")
                        plane.definitions = install_crds(plane.kubectl, options.definitions)
            except BaseException:
                plane.stop()
                raise
        return plane

    @classmethod
    def attach(cls, directory: Path) -> ControlPlane:
        """Return the control plane that was last started in a directory, even if it is stopped."""
        layout = Layout(directory.absolute())
        state = _read_state(layout)
        if state is None:
            raise PlaneError(f"no control plane was ever started in {layout.directory}")
        return cls(layout.directory, state)

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the running components, keyed by component name, in start order."""
        commands = {name: self._state.commands[name] for name in self.components}
        return processes.find_running(commands)

    def is_ready(self) -> bool:
        """Return whether the health probe of every component answers OK."""
        return all(self._is_healthy(name) for name in self.components)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Issue a client certificate to a user; return the path of the user's kubeconfig.

        The user has no permissions.
        """
        authority = read_authority(self.layout.pki)
        path = self.layout.user_kubeconfig(user)
        _write_kubeconfig(path, authority, self.server, user, groups)
        return path

    def kill(self, component: str, *, grace_s: float = 0) -> None:
        """Kill a component with SIGKILL, to simulate a crash.

        If `grace_s` is positive, send SIGTERM first, and SIGKILL only if the component still runs
        after `grace_s` seconds.
        """
        command = self._command(component)
        running = processes.find_running({component: command})
        if component in running:
            processes.end(running[component], command, grace_s=grace_s)

    def start_component(self, component: str) -> None:
        """Start a component on its previous port and wait until it is ready."""
        self._start((component,))

    def restart(self, component: str) -> None:
        """Stop a component with SIGTERM, start it again and wait until it is ready."""
        self.kill(component, grace_s=GRACE_S)
        self.start_component(component)

    def stop(self) -> None:
        """Stop all running components, in reverse start order."""
        running = self.pids
        for name in reversed([name for name in self.components if name in running]):
            processes.end(running[name], self._state.commands[name], grace_s=GRACE_S)
        if self._owner is not None:
            self._owner.release()
            self._owner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _start(self, names: tuple[str, ...]) -> None:
        running = self.pids
        # If HOME were the user's home directory, KWOK would also load the stages in
        # ~/.kwok/kwok.yaml.
        environment = {
            "HOME": str(self.layout.directory),
            "PATH": os.environ.get("PATH", os.defpath),
        }
        for name in names:
            if name in running:
                raise PlaneError(f"{name} already runs, as process {running[name]}")
            command, log = self._command(name), self.layout.log(name)
            try:
                self._spawned[name] = processes.spawn(command, log=log, environment=environment)
            except OSError as e:
                raise PlaneError(f"{name} cannot be started: {command[0]}: {e.strerror}") from e
        for name in names:
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not self._is_healthy(name):
                has_ended = processes.has_ended(self._spawned[name])
                if has_ended or time.monotonic() > deadline:
                    problem = f"is not ready after {READY_TIMEOUT_S:.0f} s"
                    if has_ended:
                        problem = "ended while starting"
                    log = self.layout.log(name)
                    tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
                    raise PlaneError(f"{name} {problem}:\n{tail}\n(the whole log: {log})")
                time.sleep(PROBE_INTERVAL_S)

    def _is_healthy(self, name: str) -> bool:
        path = {ETCD: "/health", API_SERVER: "/readyz"}.get(name, "/healthz")
        connection: http.client.HTTPConnection
        if name == ETCD:
            connection = _SocketConnection(self.layout.etcd_socket)
        elif name == KWOK:
            # KWOK serves only its health endpoint, over plain HTTP.
            port = self._state.ports[name]
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_TIMEOUT_S)
        else:
            tls = ssl.create_default_context(cafile=str(self.layout.pki / "ca.crt"))
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self._state.ports[name], timeout=PROBE_TIMEOUT_S, context=tls
            )
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _command(self, name: str) -> tuple[str, ...]:
        if name not in self._state.commands:
            raise PlaneError(f"no component {name!r} in this plane: {', '.join(self.components)}")
        return self._state.commands[name]


class Owner:
    """A watchdog that stops a control plane when the process that owns it terminates."""

    def __init__(self, layout: Layout) -> None:
        reading, self._writing = os.pipe()
        try:
            self._watchdog = processes.spawn(
                [sys.executable, "-m", "optsched.local.watchdog", str(layout.directory)],
                log=layout.log("watchdog"),
                environment=os.environ,
                stdin=reading,
            )
        finally:
            os.close(reading)

    def release(self) -> None:
        """Kill the watchdog process; the control plane then outlives this process."""
        os.kill(self._watchdog, signal.SIGKILL)
        os.waitpid(self._watchdog, 0)
        os.close(self._writing)


def wipe(directory: Path) -> None:
    """Stop the control plane in a directory, and delete its files and all cluster objects."""
    layout = Layout(directory.absolute())
    ControlPlane.attach(directory).stop()
    for folder in layout.private_folders:
        shutil.rmtree(folder, ignore_errors=True)
    for file in (layout.state, layout.lock):
        file.unlink(missing_ok=True)
    with suppress(OSError):
        layout.directory.rmdir()


def _prepare(layout: Layout, assets: Assets, options: Options) -> State:
    """Write the state file and the files that the components read; return the state."""
    earlier = _read_state(layout)
    if earlier is not None and (running := processes.find_running(earlier.commands)):
        names = ", ".join(f"{name} ({pid})" for name, pid in running.items())
        raise PlaneError(f"a control plane already runs in {layout.directory}: {names}")
    if len(bytes(layout.etcd_socket)) > MAX_SOCKET_PATH:
        raise PlaneError(
            f"{layout.directory}: the path is too long; {layout.etcd_socket} may have at most "
            f"{MAX_SOCKET_PATH} bytes, the limit for Unix sockets"
        )
    authority = ensure_pki(layout.pki, now=datetime.now(UTC))
    for folder in layout.private_folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ports = choose_ports(WITH_PORT, earlier.ports if earlier else {})
    state = State(
        kubectl=str(assets.paths["kubectl"]),
        ports=ports,
        commands=commands(assets, layout, ports, options),
    )
    for name, (user, groups) in IDENTITIES.items():
        _write_kubeconfig(layout.kubeconfig(name), authority, state.server, user, groups)
    write_private(layout.state, state.to_json().encode())
    return state


def _read_state(layout: Layout) -> State | None:
    try:
        return State.from_json(layout.state.read_text())
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise PlaneError(f"{layout.state}: {e}") from e


def _write_kubeconfig(
    path: Path, authority: Authority, server: str, user: str, groups: Sequence[str]
) -> None:
    """Issue a client certificate to a user and write the user's kubeconfig."""
    credential = authority.issue_client(user, groups=groups, now=datetime.now(UTC))
    certificate = authority.credential.certificate
    content = kubeconfig(server, certificate, user=user, credential=credential)
    write_kubeconfig(path, content)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PROBE_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


CLUSTER = "optsched-local"
SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "127.0.0.1",
    "::1",
    "10.0.0.1",
)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically; only its owner may read it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)


def write_credential(credential: Credential, stem: Path) -> None:
    """Write `stem`.crt and `stem`.key; only the owner may read the files."""
    write_private(stem.with_suffix(".crt"), credential.certificate)
    write_private(stem.with_suffix(".key"), credential.key)


def read_authority(folder: Path) -> Authority:
    """Load a control plane's certificate authority from its certificate folder."""
    paths = (folder / "ca.crt", folder / "ca.key")
    return Authority.load(Credential(*(path.read_bytes() for path in paths)))


def ensure_pki(folder: Path, *, now: datetime) -> Authority:
    """Return the certificate authority; create it and all keys if the folder is missing.

    The folder is created atomically and never replaced, because issued kubeconfigs must stay valid.
    """
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.new")
        draft.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.create(CLUSTER, now=now)
        write_credential(authority.credential, draft / "ca")
        server = authority.issue_server(SERVER_NAMES, now=now)
        write_credential(server, draft / "server")
        # The API server cannot read the service account public key from a PKCS #8 file.
        key = key_pem(generate_key(), PrivateFormat.TraditionalOpenSSL)
        write_private(draft / "service-account.key", key)
        draft.rename(folder)
    return read_authority(folder)


def kubeconfig(
    server: str, authority: bytes, *, user: str, credential: Credential
) -> dict[str, Any]:
    """Return a kubeconfig for `user` at `server`; `authority` is the CA certificate in PEM."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CLUSTER,
                "cluster": {"server": server, "certificate-authority-data": _base64(authority)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(credential.certificate),
                    "client-key-data": _base64(credential.key),
                },
            }
        ],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": CLUSTER,
    }


def write_kubeconfig(path: Path, content: dict[str, Any]) -> None:
    """Write a kubeconfig as JSON, which every YAML parser accepts."""
    write_private(path, json.dumps(content, indent=2).encode() + b"\n")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
