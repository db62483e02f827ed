"""PodGroups for pods of Deployments, StatefulSets and Kubernetes Jobs, and for bare pods.

All pods of one owner share the PodGroup `podgroup-<uid of the owner>`. A pod without an owner gets
a PodGroup of its own. Names, annotations and defaults follow Volcano's pkg/controllers/podgroup.

Differences from Volcano: Pods get an event if their queue does not exist or is not open. The
controller never removes annotations or labels from a PodGroup, so those that the scheduler adds are
kept. Pods that have ended are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields
from optsched.api.json_fields import (
    acting_for,
    annotations_of,
    controller_of,
    created_ms,
    is_owned_as,
    is_terminating,
    labels_of,
    meta_of,
    name_of,
    namespace_of,
    owner_reference,
    replacement_patch,
    spec_of,
    status_of,
    uid_of,
)
from optsched.api.kinds import (
    DAEMON_SET,
    JOB,
    KUBERNETES_JOB,
    NAMESPACE,
    POD,
    POD_GROUP,
    QUEUE,
    REPLICA_SET,
    STATEFUL_SET,
    Kind,
    Ref,
)
from optsched.api.meta import EventType
from optsched.api.podgroup import PodGroupPhase, TopologyMode
from optsched.api.queue import QueueState
from optsched.api.wellknown import (
    DEFAULT_QUEUE,
    DEFAULT_SCHEDULER_NAME,
    GROUP_MIN_MEMBER,
    GROUP_NAME_ANNOTATIONS,
    MADE_GROUP_PREFIX,
    NETWORK_TOPOLOGY_HIGHEST_TIER,
    NETWORK_TOPOLOGY_MODE,
    QUEUE_NAME,
    SUBMITTER,
    VOLCANO_PREFIX,
    first_annotation,
    parse_submitters,
)
from optsched.cluster.reasons import ReasonCode
from optsched.controllers.controller import Controller, Index
from optsched.controllers.effects import Create, delete_object, event_about, patch_object
from optsched.formats.codec.core_schemas import POD as POD_SCHEMA
from optsched.formats.codec.pods.resource_requests import pod_request, pod_usage
from optsched.units import format_resource_list
from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import Wakes, World
    from optsched.controllers.effects import Effects, Patch

OWNERS: Final[Mapping[tuple[str, str], Kind]] = {
    (kind.api_version, kind.kind): kind
    for kind in (REPLICA_SET, STATEFUL_SET, DAEMON_SET, KUBERNETES_JOB)
}
"""The kinds of owners from which PodGroups inherit annotations, keyed by (apiVersion, kind)."""

_ENDED: Final = frozenset({"Succeeded", "Failed"})
_MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Options:
    """Which pods get PodGroups, and which annotations and labels PodGroups inherit.

    A PodGroup inherits the annotations and labels whose key has a prefix in `inherits`. With
    `--inherit-owner-annotations=false`, `inherits` is empty, and the owner's annotations do not
    determine `minMember`.
    """

    scheduler_names: tuple[str, ...] = (DEFAULT_SCHEDULER_NAME,)
    default_queue: str = DEFAULT_QUEUE
    inherits: tuple[str, ...] = (VOLCANO_PREFIX,)


def group_name_of(pod: Manifest) -> str:
    """Return the name of the PodGroup that is created for a pod."""
    owner = controller_of(pod)
    return MADE_GROUP_PREFIX + str(owner.get("uid") if owner else uid_of(pod))


class PodGroups:
    """Reconciles the PodGroups for pods that name no PodGroup."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._members_of = Index(POD, "made-group", self._find_group_keys)
        self._pods_of_queue = Index(POD, "queue", self._find_queues)

    @property
    def controller(self) -> Controller:
        """The PodGroup controller; it watches pods, queues and the owners of pods."""
        wakes: dict[Kind, Wakes] = {POD: self._pod_wakes, QUEUE: self._queue_wakes}
        for kind in OWNERS.values():
            wakes[kind] = lambda owner, _: (
                Ref(POD_GROUP, namespace_of(owner), MADE_GROUP_PREFIX + uid_of(owner)),
            )
        return Controller(
            name="podgroup",
            kind=POD_GROUP,
            decide=self.decide,
            wakes=wakes,
            indexes=(self._members_of, self._pods_of_queue),
            reads=(NAMESPACE,),
        )

    def decide(self, ref: Ref, world: World) -> Effects:
        """Return the effects for the PodGroup that `ref` names, which may not exist yet."""
        if not ref.name.startswith(MADE_GROUP_PREFIX):
            return ()
        group = world.get(POD_GROUP, ref.namespace, ref.name)
        if group is not None and is_terminating(group):
            return ()
        members = world.list_indexed(self._members_of, f"{ref.namespace}/{ref.name}")
        pods = sorted(members, key=lambda pod: (created_ms(pod), name_of(pod)))
        followed = _find_followed_pod(pods, group)
        owner = _find_owner(followed or group, world)
        # If an owner has 0 replicas, all its remaining pods will terminate, so its PodGroup is
        # deleted. A PodGroup that a user created with a name `podgroup-…` may have another owner;
        # it is kept.
        is_own_group = owner is not None and ref.name == MADE_GROUP_PREFIX + uid_of(owner)
        if owner is not None and is_own_group and spec_of(owner).get("replicas") == 0:
            if group is None:
                return ()
            return (delete_object(POD_GROUP, group),)
        if followed is None:
            return ()
        desired = self._desired_group(ref, followed, owner, world)
        if group is None:
            queue = desired["spec"]["queue"]
            obstacle = _find_obstacle(queue, world)
            if obstacle is None:
                new_group = {**desired, "status": {"phase": PodGroupPhase.PENDING.value}}
                return (Create(POD_GROUP, new_group),)
            # The scheduler reports an event with the same message; both reports become one Event
            # object.
            reason, message = obstacle
            code = reason.value
            event = (EventType.WARNING, "Unschedulable", f"{code}: {message}", code)
            return tuple(
                event_about(POD, pod, *event) for pod in pods if not spec_of(pod).get("nodeName")
            )
        body = {"metadata": {"annotations": {GROUP_NAME_ANNOTATIONS[0]: ref.name}}}
        annotated = (patch_object(POD, pod, body) for pod in pods if not _is_annotated(pod))
        return (*_correct_group(group, desired), *annotated)

    # --- membership ------------------------------------------------------------------------------

    def _find_group_keys(self, pod: Manifest) -> Iterator[str]:
        """Yield the key of the PodGroup generated for a pod, if this controller must create one."""
        named = first_annotation(annotations_of(pod), GROUP_NAME_ANNOTATIONS)
        if named and not named.startswith(MADE_GROUP_PREFIX):
            return
        spec = spec_of(pod)
        if spec.get("schedulerName") not in self._options.scheduler_names:
            return
        if (
            is_terminating(pod)
            or status_of(pod).get("phase") in _ENDED
            or spec.get("schedulingGroup")
        ):
            return
        own_group = group_name_of(pod)
        # The PodGroup of a Volcano Job named `podgroup` is also called `podgroup-<uid>`, but the
        # job controller creates it.
        owner = controller_of(pod) or {}
        is_of_job = is_owned_as(owner, JOB) and f"{owner.get('name')}-" == MADE_GROUP_PREFIX
        if named in ("", own_group) and not is_of_job:
            yield f"{namespace_of(pod)}/{own_group}"

    def _find_queues(self, pod: Manifest) -> Iterator[str]:
        queue = annotations_of(pod).get(QUEUE_NAME)
        if queue and not _is_annotated(pod):
            for _ in self._find_group_keys(pod):
                yield queue

    def _pod_wakes(self, pod: Manifest, _: World) -> Iterator[Ref]:
        for key in self._find_group_keys(pod):
            namespace, _sep, name = key.partition("/")
            yield Ref(POD_GROUP, namespace, name)

    def _queue_wakes(self, queue: Manifest, world: World) -> Iterator[Ref]:
        """Yield the PodGroups of pods whose annotation or namespace names this queue."""
        name = name_of(queue)
        for pod in world.list_indexed(self._pods_of_queue, name):
            yield from self._pod_wakes(pod, world)
        for namespace in world.listed(NAMESPACE):
            if annotations_of(namespace).get(QUEUE_NAME) == name:
                for pod in world.listed(POD, name_of(namespace)):
                    if not _is_annotated(pod):
                        yield from self._pod_wakes(pod, world)

    # --- desired PodGroup ------------------------------------------------------------------------

    def _desired_group(
        self, ref: Ref, pod: Manifest, owner: Manifest | None, world: World
    ) -> dict[str, Any]:
        """Return the desired PodGroup.

        `pod` is the pod whose queue, requests and annotations the PodGroup gets.
        """
        above = {} if owner is None or not self._options.inherits else annotations_of(owner)
        text = above.get(GROUP_MIN_MEMBER, "")
        is_number = is_decimal(text, len(str(_MOST)))
        min_member = int(text) if is_number and int(text) <= _MOST else 1
        queue = annotations_of(pod).get(QUEUE_NAME)
        if not queue:
            namespace = world.get(NAMESPACE, "", namespace_of(pod)) or {}
            queue = annotations_of(namespace).get(QUEUE_NAME)
        pod_spec = Fields(pod, POD_SCHEMA, "", []).record("spec")
        request = pod_request(pod_spec, Fields({}, POD_SCHEMA, "", []).record("status"))
        usage = pod_usage(pod_spec, request)
        amounts = {name: amount * min_member for name, amount in usage.items() if min_member}
        spec: dict[str, Any] = {
            "minMember": min_member,
            "queue": queue or self._options.default_queue,
            "minResources": format_resource_list(amounts) or None,
            "priorityClassName": spec_of(pod).get("priorityClassName") or None,
            "networkTopology": _read_topology(annotations_of(pod)),
        }
        # A pod that no controller owns becomes the owner of its PodGroup.
        owners = [owner_reference(POD, pod)]
        if controller_of(pod) is not None:
            owners = list(meta_of(pod)["ownerReferences"])
        metadata = {
            "name": ref.name,
            "namespace": ref.namespace,
            "annotations": {
                **self._select_inherited(above),
                **self._select_inherited(annotations_of(pod)),
                **acting_for(pod),
            },
            "labels": self._select_inherited(labels_of(pod)),
            "ownerReferences": owners,
        }
        return {
            "apiVersion": POD_GROUP.api_version,
            "kind": POD_GROUP.kind,
            "metadata": {name: value for name, value in metadata.items() if value},
            "spec": {name: value for name, value in spec.items() if value is not None},
        }

    def _select_inherited(self, texts: Mapping[str, str]) -> dict[str, str]:
        return {k: v for k, v in texts.items() if k.startswith(self._options.inherits or ("\0",))}


# --- parts of a PodGroup -------------------------------------------------------------------------


def _find_followed_pod(pods: Sequence[Manifest], group: Manifest | None) -> Manifest | None:
    """Return the newest pod with the same submitters as the PodGroup, or else the newest pod.

    If there is no PodGroup, the submitters of the oldest pod are used. `pods` must be sorted from
    oldest to newest. Users may write any owner reference into a pod, so a pod of another user must
    not change the PodGroup's queue, owner or submitter.
    """
    if not pods:
        return None
    users = _list_users(pods[0] if group is None else group)
    return next((pod for pod in reversed(pods) if _list_users(pod) == users), pods[-1])


def _list_users(obj: Manifest) -> frozenset[str]:
    return frozenset(each.user for each in parse_submitters(annotations_of(obj).get(SUBMITTER)))


def _read_topology(annotations: Mapping[str, str]) -> dict[str, Any] | None:
    mode = annotations.get(NETWORK_TOPOLOGY_MODE)
    tier = annotations.get(NETWORK_TOPOLOGY_HIGHEST_TIER)
    if mode is None and tier is None:
        return None
    is_soft = mode is not None and mode.lower() == TopologyMode.SOFT
    found: dict[str, Any] = {"mode": (TopologyMode.SOFT if is_soft else TopologyMode.HARD).value}
    if tier is not None and is_decimal(tier) and int(tier) <= _MOST:
        found["highestTierAllowed"] = int(tier)
    return found


def _find_owner(obj: Manifest | None, world: World) -> Manifest | None:
    """Return an object's controlling owner if it exists and is of a kind in `OWNERS`, else None."""
    reference = None if obj is None else controller_of(obj)
    if obj is None or reference is None:
        return None
    kind = OWNERS.get((str(reference.get("apiVersion")), str(reference.get("kind"))))
    if kind is None:
        return None
    owner = world.get(kind, namespace_of(obj), str(reference.get("name")))
    return owner if owner is not None and uid_of(owner) == reference.get("uid") else None


# --- effects --------------------------------------------------------------------------------------


def _correct_group(group: Manifest, desired: Mapping[str, Any]) -> Iterator[Patch]:
    """Yield a patch if a field that this controller sets is outdated; keep all other fields."""
    body: dict[str, Any] = {}
    spec, old_spec = desired["spec"], spec_of(group)
    fields = ("minMember", "queue", "minResources", "priorityClassName", "networkTopology")
    changed = {name: spec.get(name) for name in fields if old_spec.get(name) != spec.get(name)}
    if changed:
        body["spec"] = {
            n: replacement_patch(old_spec.get(n), value) for n, value in changed.items()
        }
    for subobject, old_texts in (
        ("annotations", annotations_of(group)),
        ("labels", labels_of(group)),
    ):
        texts = desired["metadata"].get(subobject, {})
        fresh = {name: text for name, text in texts.items() if old_texts.get(name) != text}
        if fresh:
            body.setdefault("metadata", {})[subobject] = fresh
    if body:
        yield patch_object(POD_GROUP, group, body)


def _is_annotated(pod: Manifest) -> bool:
    return first_annotation(annotations_of(pod), GROUP_NAME_ANNOTATIONS) != ""


def _find_obstacle(name: str, world: World) -> tuple[ReasonCode, str] | None:
    """Return (code, message) if a queue accepts no PodGroups, and otherwise None."""
    queue = world.get(QUEUE, "", name)
    if queue is None:
        listed = world.listed(QUEUE)
        states = {name_of(each): status_of(each).get("state") or QueueState.OPEN for each in listed}
        names = sorted(n for n, state in states.items() if state == QueueState.OPEN)
        more = ", …" if len(names) > 5 else ""
        open_queues = f"; open are {', '.join(names[:5])}{more}" if names else ""
        message = f"queue {name} does not exist{open_queues}"
        return ReasonCode.QUEUE_NOT_FOUND, message
    state = status_of(queue).get("state") or QueueState.OPEN
    if state == QueueState.OPEN:
        return None
    message = f"queue {name} is {state} and takes no new work"
    return ReasonCode.QUEUE_NOT_OPEN, message
