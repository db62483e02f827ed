"""The Kubernetes kinds that optsched reads and writes, and their paths on the API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of API object.

    `group` is empty for the core group. `plural` is the name in API paths. `has_status` is true if
    the kind has a status subresource.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    has_status: bool = False

    @property
    def singular(self) -> str:
        """The singular name of the kind in commands and messages, such as podgroup."""
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        """The value of `apiVersion`, such as v1 or scheduling.volcano.sh/v1beta1."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to one object; `namespace` is empty for a cluster-scoped kind."""

    kind: Kind
    namespace: str
    name: str

    @property
    def key(self) -> str:
        """The key `namespace/name`, or only the name for a cluster-scoped kind."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


SCHEDULING_GROUP: Final = "scheduling.volcano.sh"
BATCH_GROUP: Final = "batch.volcano.sh"
FLOW_GROUP: Final = "flow.volcano.sh"

QUEUE: Final = Kind(
    SCHEDULING_GROUP, "v1beta1", "Queue", "queues", namespaced=False, has_status=True
)
POD_GROUP: Final = Kind(SCHEDULING_GROUP, "v1beta1", "PodGroup", "podgroups")
SCHEDULING_POD_GROUPS: Final = tuple(
    Kind("scheduling.k8s.io", version, "PodGroup", "podgroups")
    for version in ("v1beta1", "v1alpha3", "v1alpha2")
)
"""The upstream PodGroup kind in each API version, newest first; clusters may lack versions."""
HYPER_NODE: Final = Kind(
    "topology.volcano.sh", "v1alpha1", "HyperNode", "hypernodes", namespaced=False, has_status=True
)
NUMATOPOLOGY: Final = Kind(
    "nodeinfo.volcano.sh", "v1alpha1", "Numatopology", "numatopologies", namespaced=False
)
NODE_SHARD: Final = Kind(
    "shard.volcano.sh", "v1alpha1", "NodeShard", "nodeshards", namespaced=False, has_status=True
)
JOB: Final = Kind(BATCH_GROUP, "v1alpha1", "Job", "jobs", has_status=True)
CRON_JOB: Final = Kind(BATCH_GROUP, "v1alpha1", "CronJob", "cronjobs", has_status=True)
COMMAND: Final = Kind("bus.volcano.sh", "v1alpha1", "Command", "commands")
JOB_FLOW: Final = Kind(FLOW_GROUP, "v1alpha1", "JobFlow", "jobflows", has_status=True)
JOB_TEMPLATE: Final = Kind(FLOW_GROUP, "v1alpha1", "JobTemplate", "jobtemplates", has_status=True)
COLOCATION_CONFIGURATION: Final = Kind(
    "config.volcano.sh",
    "v1alpha1",
    "ColocationConfiguration",
    "colocationconfigurations",
    has_status=True,
)
PRIORITY_CLASS: Final = Kind(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False
)
POD_TEMPLATE: Final = Kind("", "v1", "PodTemplate", "podtemplates")
POD: Final = Kind("", "v1", "Pod", "pods", has_status=True)
NODE: Final = Kind("", "v1", "Node", "nodes", namespaced=False, has_status=True)
NAMESPACE: Final = Kind("", "v1", "Namespace", "namespaces", namespaced=False, has_status=True)
PERSISTENT_VOLUME_CLAIM: Final = Kind(
    "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", has_status=True
)
PERSISTENT_VOLUME: Final = Kind(
    "", "v1", "PersistentVolume", "persistentvolumes", namespaced=False, has_status=True
)
STORAGE_CLASS: Final = Kind(
    "storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False
)
CSI_NODE: Final = Kind("storage.k8s.io", "v1", "CSINode", "csinodes", namespaced=False)
POD_DISRUPTION_BUDGET: Final = Kind(
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", has_status=True
)
RESOURCE_QUOTA: Final = Kind("", "v1", "ResourceQuota", "resourcequotas", has_status=True)
_DEVICE_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
RESOURCE_CLAIMS: Final = tuple(
    Kind("resource.k8s.io", version, "ResourceClaim", "resourceclaims", has_status=True)
    for version in _DEVICE_VERSIONS
)
DEVICE_CLASSES: Final = tuple(
    Kind("resource.k8s.io", version, "DeviceClass", "deviceclasses", namespaced=False)
    for version in _DEVICE_VERSIONS
)
RESOURCE_SLICES: Final = tuple(
    Kind("resource.k8s.io", version, "ResourceSlice", "resourceslices", namespaced=False)
    for version in _DEVICE_VERSIONS
)
"""The ResourceSlice kind in each API version, newest first; clusters may lack versions."""
DEVICE_KINDS: Final = (*RESOURCE_CLAIMS, *DEVICE_CLASSES, *RESOURCE_SLICES)
REPLICA_SET: Final = Kind("apps", "v1", "ReplicaSet", "replicasets", has_status=True)
STATEFUL_SET: Final = Kind("apps", "v1", "StatefulSet", "statefulsets", has_status=True)
DAEMON_SET: Final = Kind("apps", "v1", "DaemonSet", "daemonsets", has_status=True)
KUBERNETES_JOB: Final = Kind("batch", "v1", "Job", "jobs", has_status=True)
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("", "v1", "Secret", "secrets")
SERVICE: Final = Kind("", "v1", "Service", "services", has_status=True)
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
VALIDATING_WEBHOOK_CONFIGURATION: Final = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
MUTATING_WEBHOOK_CONFIGURATION: Final = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
SUBJECT_ACCESS_REVIEW: Final = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
TOKEN_REVIEW: Final = Kind(
    "authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False
)
LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases")
EVENT: Final = Kind("", "v1", "Event", "events")

KINDS: Final = (
    QUEUE,
    POD_GROUP,
    *SCHEDULING_POD_GROUPS,
    HYPER_NODE,
    NUMATOPOLOGY,
    NODE_SHARD,
    JOB,
    CRON_JOB,
    COMMAND,
    JOB_FLOW,
    JOB_TEMPLATE,
    COLOCATION_CONFIGURATION,
    PRIORITY_CLASS,
    POD,
    NODE,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    PERSISTENT_VOLUME,
    STORAGE_CLASS,
    CSI_NODE,
    POD_DISRUPTION_BUDGET,
    RESOURCE_QUOTA,
    *DEVICE_KINDS,
    REPLICA_SET,
    STATEFUL_SET,
    DAEMON_SET,
    KUBERNETES_JOB,
    CONFIG_MAP,
    SECRET,
    VALIDATING_WEBHOOK_CONFIGURATION,
    MUTATING_WEBHOOK_CONFIGURATION,
    SERVICE,
    NETWORK_POLICY,
    LEASE,
    EVENT,
)
_KIND_OF: Final = {(kind.api_version, kind.kind): kind for kind in KINDS}


def find_kind(api_version: str, kind: str) -> Kind | None:
    """Return the kind in KINDS with this `apiVersion` and `kind`, or None."""
    return _KIND_OF.get((api_version, kind))


def kind_of(obj: Mapping[str, Any]) -> Kind | None:
    """Return the kind of an object, or None if the kind is not in KINDS."""
    return find_kind(str(obj.get("apiVersion")), str(obj.get("kind")))


def collection_path(kind: Kind, namespace: str | None = None) -> str:
    """Return the API path under which objects of a kind are listed, watched and created.

    `namespace` is None for all namespaces and for a cluster-scoped kind. Raises ValueError if a
    namespace is given for a cluster-scoped kind.
    """
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    if namespace is None:
        return f"{root}/{kind.plural}"
    if not kind.namespaced:
        raise ValueError(f"{kind} is cluster-scoped, so it has no namespace {namespace!r}")
    return f"{root}/namespaces/{quote(namespace, safe='')}/{kind.plural}"


def is_path_segment(name: str) -> bool:
    """Return whether a name is a valid path segment; every object name must be one.

    Source: apimachinery, pkg/api/validation/path (IsValidPathSegmentName).
    """
    return name not in ("", ".", "..") and not any(character in "/%" for character in name)


def object_path(kind: Kind, namespace: str | None, name: str, subresource: str = "") -> str:
    """Return the API path of an object or of its subresource, such as status or binding.

    Raises ValueError if a namespaced kind has no namespace or a cluster-scoped kind has one.
    """
    if kind.namespaced and not namespace:
        raise ValueError(f"{kind} {name!r} needs a namespace")
    path = f"{collection_path(kind, namespace or None)}/{quote(name, safe='')}"
    return f"{path}/{subresource}" if subresource else path
