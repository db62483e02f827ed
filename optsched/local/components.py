"""The components of a control plane, their start order and their command lines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from optsched.local.assets import shipped
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from optsched.local.assets import Assets

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KWOK = "kwok"

#: The components in start order, which is the reverse of their stop order.
COMPONENTS = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)
WITH_PORT = (API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)

#: The user and groups with which each client authenticates to the API server. The controllers share
#: one identity because they run in one process. KWOK acts as every kubelet, for which no single
#: built-in role suffices.
IDENTITIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("admin", ("system:masters",)),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", ("system:masters",)),
    SCHEDULER: ("system:kube-scheduler", ()),
    KWOK: ("kwok", ("system:masters",)),
}

#: Controllers that are disabled because they have nothing to do in this control plane. Nodes have
#: no leases, address ranges or routes, and no volumes are attached. No client requests
#: certificates, bootstrap tokens or legacy tokens, and there are no metrics for autoscaling. The
#: TTL controller would patch every node as the cluster grows.
IDLE_CONTROLLERS = (
    "bootstrap-signer-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "cloud-node-lifecycle-controller",
    "horizontal-pod-autoscaler-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "node-ipam-controller",
    "node-lifecycle-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "podcertificaterequest-cleaner-controller",
    "root-ca-certificate-publisher-controller",
    "service-lb-controller",
    "serviceaccount-token-controller",
    "token-cleaner-controller",
    "ttl-controller",
)


class Lifetime(StrEnum):
    """Whether a control plane stops with its starting process or runs until `stop` is called."""

    OWNED = "owned"
    DETACHED = "detached"


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a local control plane.

    `extra_args` are appended to a component's command line and override earlier flags.
    `definitions` is None or a folder with CustomResourceDefinitions to install before controllers
    start. If a CustomResourceDefinition is added after the start, kube-controller-manager discovers
    the new kind within 30 s. If an object of the kind is deleted before kube-controller-manager
    discovers the kind, garbage collection may miss the object's dependents.
    """

    lifetime: Lifetime = Lifetime.OWNED
    scheduler: bool = False
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)
    definitions: Path | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.extra_args) - set(COMPONENTS)):
            raise ValueError(f"extra_args: no component {unknown}; there are {list(COMPONENTS)}")

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components, in start order."""
        return tuple(name for name in COMPONENTS if self.scheduler or name != SCHEDULER)


class Layout:
    """The file paths of one local control plane.

    `etcd` is the folder with etcd's data and socket. `private_folders` lists the folders that only
    the owner of the control plane may enter. `state` is the file with the ports and command lines
    of the started components. `lock` is a file that is locked while a control plane starts, to
    prevent two control planes in one directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pki = directory / "pki"
        self.etcd = directory / "etcd"
        self.etcd_socket = self.etcd / "client.sock"
        self.logs = directory / "logs"
        self.kubeconfigs = directory / "kubeconfig"
        self.private_folders = (self.etcd, self.pki, self.logs, self.kubeconfigs)
        self.state = directory / "state.json"
        self.lock = directory / "lock"

    def log(self, component: str) -> Path:
        """Return the path of a component's log file; each start of the component appends to it."""
        return self.logs / f"{component}.log"

    def kubeconfig(self, identity: str) -> Path:
        """Return the path of the administrator's or a component's kubeconfig."""
        return self.kubeconfigs / identity

    def user_kubeconfig(self, user: str) -> Path:
        """Return the path of a user's kubeconfig; a prefix distinguishes users from components."""
        return self.kubeconfigs / f"user-{user.replace(':', '-').replace('/', '-')}"


@dataclass(frozen=True, slots=True)
class State:
    """The content of the state file, from which any process can find and restart the components."""

    kubectl: str
    ports: Mapping[str, int]
    commands: Mapping[str, tuple[str, ...]]

    def to_json(self) -> str:
        """Return the content of the state file."""
        content = {
            "kubectl": self.kubectl,
            "ports": dict(self.ports),
            "commands": {name: list(command) for name, command in self.commands.items()},
        }
        return json.dumps(content, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> State:
        """Parse a state that `to_json` has written; raises ValueError for any other text."""
        try:
            content = json.loads(text)
            return cls(
                kubectl=content["kubectl"],
                ports=dict(content["ports"]),
                commands={name: tuple(args) for name, args in content["commands"].items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as e:
            raise ValueError(f"is not the state of a control plane: {why_unreadable(e)}") from e

    @property
    def server(self) -> str:
        """The address of the API server."""
        return f"https://127.0.0.1:{self.ports[API_SERVER]}"


def commands(
    assets: Assets, layout: Layout, ports: Mapping[str, int], options: Options
) -> dict[str, tuple[str, ...]]:
    """Return the command line of each component, in start order."""
    arguments: dict[str, dict[str, object]] = {
        ETCD: {
            "data-dir": layout.etcd / "data",
            # A socket in a private folder needs no encryption. A port would be accessible to web
            # pages and to other users of the machine.
            "listen-client-urls": f"unix://{layout.etcd_socket}",
            # etcd cannot advertise a Unix socket. Only other etcd members would use the advertised
            # address, and this member is the only one.
            "advertise-client-urls": "http://localhost:2379",
            # Even a single etcd member must listen for peers. The member listens on an arbitrary
            # free port and trusts only its own certificate.
            "listen-peer-urls": "https://127.0.0.1:0",
            "peer-cert-file": layout.pki / "server.crt",
            "peer-key-file": layout.pki / "server.key",
            "peer-client-cert-auth": "true",
            "peer-trusted-ca-file": layout.pki / "server.crt",
            # Writes need not reach the disk: the control plane can be recreated after a
            # power failure.
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        },
        API_SERVER: _api_server(layout, ports),
        CONTROLLER_MANAGER: {
            **_client(layout, CONTROLLER_MANAGER),
            **_serving(layout, ports[CONTROLLER_MANAGER]),
            "controllers": ",".join(["*", *(f"-{name}" for name in IDLE_CONTROLLERS)]),
            "use-service-account-credentials": "false",
        },
        SCHEDULER: {**_client(layout, SCHEDULER), **_serving(layout, ports[SCHEDULER])},
        KWOK: {
            "kubeconfig": layout.kubeconfig(KWOK),
            "config": shipped("local", "stages.yaml"),
            "server-address": f"127.0.0.1:{ports[KWOK]}",
            "v": "WARN",
        },
    }
    return {
        name: (
            str(assets.paths[name]),
            *(f"--{flag}={value}" for flag, value in arguments[name].items()),
            *options.extra_args.get(name, ()),
        )
        for name in options.components
    }


def _api_server(layout: Layout, ports: Mapping[str, int]) -> dict[str, object]:
    pki = layout.pki
    return {
        "etcd-servers": f"unix://{layout.etcd_socket}",
        **_serving(layout, ports[API_SERVER]),
        "client-ca-file": pki / "ca.crt",
        "authorization-mode": "RBAC",
        # The endpoints of the `kubernetes` Service must not contain a loopback address.
        "advertise-address": "127.0.0.1",
        "endpoint-reconciler-type": "none",
        "service-cluster-ip-range": "10.0.0.0/16",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": pki / "service-account.key",
        "service-account-signing-key-file": pki / "service-account.key",
        # TaintNodesByCondition adds a taint that no controller here removes. ServiceAccount
        # rejects pods until the namespace's service account exists, and mounts tokens that no
        # container reads.
        "disable-admission-plugins": "TaintNodesByCondition,ServiceAccount",
        # In benchmarks, an ordinary user sends hundreds of concurrent requests.
        "max-requests-inflight": 2000,
        "max-mutating-requests-inflight": 1000,
        "profiling": "false",
    }


def _client(layout: Layout, component: str) -> dict[str, object]:
    kubeconfig = layout.kubeconfig(component)
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authentication-skip-lookup": "true",
        "client-ca-file": layout.pki / "ca.crt",
        "authorization-kubeconfig": kubeconfig,
        # Each component has one replica, which needs no leader election. Benchmarks compare
        # clients, which rate limits must not slow down.
        "leader-elect": "false",
        "kube-api-qps": 5000,
        "kube-api-burst": 5000,
        "profiling": "false",
    }


def _serving(layout: Layout, port: int) -> dict[str, object]:
    return {
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "tls-cert-file": layout.pki / "server.crt",
        "tls-private-key-file": layout.pki / "server.key",
    }
