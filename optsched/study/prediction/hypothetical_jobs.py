"""Predict when hypothetical jobs would start, by a session on the cluster with these jobs added.

A second session, without the hypothetical jobs, shows which other gangs these jobs affect.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from optsched.api.kinds import POD, POD_GROUP, kind_of
from optsched.cluster.decisions import Allocate, Enqueue, Evict, Nominate
from optsched.cluster.snapshot import GangPhase
from optsched.formats.codec.annotations import time_text
from optsched.formats.snapshots.assembly import assemble
from optsched.session.session import expected_starts, run_session
from optsched.study.prediction.queue_position import is_pod_of, key_of, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Certificate, Plan
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import CapacityReservation, Gang, Snapshot
    from optsched.formats.files.diagnostics import ObjectProblem
    from optsched.formats.snapshots.assembly import Assembled
    from optsched.study.prediction.queue_position import PredictionSettings

    Manifest = Mapping[str, Any]


class Start(StrEnum):
    """When a gang would start.

    - NOW: the gang starts in this session.
    - SOON: the gang starts after terminating pods and victims have released their resources.
    - LATER: the gang does not start before a later session.
    - NEVER: the gang does not fit on the current nodes.
    """

    NOW = "now"
    SOON = "soon"
    LATER = "later"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that would be evicted; `gang` is empty for a bare pod."""

    pod: str
    node: str
    gang: str
    action: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one gang."""

    gang: str
    start: Start
    num_pods: int  # Number of pods in the gang.
    places: Mapping[str, str]  # The node of each pod that would be bound or nominated.
    victims: tuple[Victim, ...] = ()  # Pods that would be evicted for the gang.
    # Why pods of the gang are pending; None if no pod of the gang is pending.
    reason: Reason | None = None
    # Expected start of a pending gang, computed from the known end times of running pods; None if
    # it is unknown.
    expected: CapacityReservation | None = None


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions for the added gangs, and the other gangs that the added objects affect."""

    taken_ms: int  # Time of the snapshot.
    added: tuple[Prediction, ...]
    # `starts_no_more` lists other gangs that would start now without the added objects, but not
    # with them. `starts_too` lists other gangs that would start now only with the added objects.
    starts_no_more: tuple[str, ...]
    starts_too: tuple[str, ...]
    certificate: Certificate
    problems: tuple[ObjectProblem, ...] = ()  # Problems with the decoded objects.


@dataclass(frozen=True)
class AddedObjects:
    """The hypothetical objects that are added to the cluster."""

    # Added pods and PodGroups must not exist in the cluster. Objects of other kinds may replace
    # existing objects.
    objects: Sequence[Manifest]
    # Pods that a controller creates after an added PodGroup is enqueued, keyed by PodGroup.
    pods_of: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)


class Clash(Exception):
    """Raised if a pod or PodGroup to be added already exists in the cluster."""

    def __init__(self, names: Sequence[str]) -> None:
        text = ", ".join(names)
        verb = "exists" if len(names) == 1 else "exist"
        super().__init__(f"{text} {verb} already: choose another name")
        self.names = tuple(names)


def predict(
    objects: Sequence[Manifest], added: AddedObjects, settings: PredictionSettings
) -> Predictions:
    """Predict the effects of objects that are added to a cluster or replace objects in it.

    `objects` holds the cluster's objects, from `kube.capture` or a file. Raises Clash if a pod or
    PodGroup to be added already exists in the cluster.
    """
    before = assemble(objects, settings.options).snapshot
    return _Predictor(objects, added, settings, before.taken_ms).predict_starts(before)


class _Predictor:
    """Computes one prediction: adds hypothetical objects to the cluster and runs sessions on it."""

    def __init__(
        self,
        objects: Sequence[Manifest],
        added: AddedObjects,
        settings: PredictionSettings,
        now_ms: int,
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._pods_of = {
            key: [_dated(pod, now_ms) for pod in pods] for key, pods in added.pods_of.items()
        }
        self._added = [_dated(obj, now_ms) for obj in added.objects]
        self._all_pods = [pod for pods in self._pods_of.values() for pod in pods]
        added_objects = [*self._added, *self._all_pods]
        names = {name_of(obj) for obj in added_objects}
        clashes = [
            f"{obj['kind']} {key_of(obj)}"
            for obj in objects
            if kind_of(obj) in (POD, POD_GROUP) and name_of(obj) in names
        ]
        if clashes:
            raise Clash(sorted(clashes))
        self._merged = [*(obj for obj in objects if name_of(obj) not in names), *added_objects]

    def predict_starts(self, before: Snapshot) -> Predictions:
        """Return the predictions; `before` is the snapshot without the added objects."""
        base = run_session(before, self._settings.policy, self._settings.context).plan
        # The gangs that the plan does not enqueue, with the reasons. Controllers create no pods for
        # gangs that are not enqueued.
        outside: dict[str, Reason | None] = {}
        if self._pods_of:
            unmade = {key_of(pod) for pod in self._all_pods}
            _, plan = self._run_session(obj for obj in self._merged if not is_pod_of(obj, unmade))
            enqueued = {action.gang for action in plan.actions if isinstance(action, Enqueue)}
            outside = {key: plan.pending.get(key) for key in self._pods_of if key not in enqueued}
        read, plan = self._run_session(self._with_pods(outside.keys()))
        after = read.snapshot
        keys = {(str(obj["kind"]), key_of(obj)) for obj in self._added}
        added = [
            gang
            for gang in after.gangs
            if (POD_GROUP.kind, gang.key) in keys
            or any((POD.kind, task.key) in keys for task in gang.tasks)
        ]
        found = [self._predict_gang(gang, plan, after, outside) for gang in added]
        added_keys = {gang.key for gang in added}
        without, with_ = (
            {gang.key for gang in snapshot.gangs}
            & {action.gang for action in actions if isinstance(action, Allocate)}
            for snapshot, actions in ((before, base.actions), (after, plan.actions))
        )
        timed = self._add_expected_starts(found, plan)
        return Predictions(
            taken_ms=self._now_ms,
            added=tuple(self._check_empty_cluster(prediction) for prediction in timed),
            starts_no_more=tuple(sorted(without - with_ - added_keys)),
            starts_too=tuple(sorted(with_ - without - added_keys)),
            certificate=plan.certificate,
            problems=read.problems,
        )

    def _run_session(self, objects: Iterable[Manifest]) -> tuple[Assembled, Plan]:
        settings = self._settings
        read = assemble(objects, settings.options, self._now_ms)
        return read, run_session(read.snapshot, settings.policy, settings.context).plan

    # --- pods that controllers create ------------------------------------------------------------

    def _with_pods(self, outside: Collection[str] = ()) -> Iterator[Manifest]:
        """Yield the merged objects, without the controller-created pods of gangs in `outside`."""
        unmade = {key_of(pod) for key in outside for pod in self._pods_of[key]}
        for obj in self._merged:
            key = key_of(obj)
            if obj.get("kind") == POD_GROUP.kind and key in self._pods_of and key not in outside:
                yield {**obj, "status": {"phase": GangPhase.INQUEUE.value}}
            elif not is_pod_of(obj, unmade):
                yield obj

    # --- predictions -----------------------------------------------------------------------------

    def _predict_gang(
        self, gang: Gang, plan: Plan, snapshot: Snapshot, outside: Mapping[str, Reason | None]
    ) -> Prediction:
        bound, kept = (
            {a.task: a.node for a in plan.actions if isinstance(a, kind) and a.gang == gang.key}
            for kind in (Allocate, Nominate)
        )
        minimum, num_placed = max(gang.min_member, 1), len(bound) + len(kept)
        start = Start.SOON if num_placed >= minimum else Start.LATER
        gang_of = {task.key: other.key for other in snapshot.gangs for task in other.tasks}
        victims = (a for a in plan.actions if isinstance(a, Evict) and a.preemptor == gang.key)
        return Prediction(
            gang=gang.key,
            start=Start.NOW if len(bound) >= minimum else start,
            num_pods=max(len(gang.tasks), len(self._pods_of.get(gang.key, ()))),
            places={**bound, **kept},
            victims=tuple(
                Victim(a.task, a.node, gang_of.get(a.task, ""), a.action) for a in victims
            ),
            reason=outside.get(gang.key) or plan.pending.get(gang.key),
        )

    def _add_expected_starts(self, found: Sequence[Prediction], plan: Plan) -> Iterator[Prediction]:
        """Yield the predictions, with the expected start of gangs that the plan does not start."""
        waiting = {prediction.gang for prediction in found if prediction.start is Start.LATER}
        if not waiting:
            yield from found
            return
        # Execute the plan: placed pods run, and victims are deleted or moved.
        node_of = {a.task: a.node for a in plan.actions if isinstance(a, Allocate | Nominate)}
        evicted = {a.task: a.to for a in plan.actions if isinstance(a, Evict)}
        done: list[Manifest] = []
        for obj in self._with_pods():
            key = key_of(obj) if obj.get("kind") == POD.kind else ""
            node = node_of.get(key) or evicted.get(key)
            if node:
                spec = {**obj["spec"], "nodeName": node}
                done.append({**obj, "spec": spec, "status": {"phase": "Running"}})
            elif key not in evicted:
                done.append(obj)
        snapshot = assemble(done, self._settings.options, self._now_ms).snapshot
        expected = expected_starts(snapshot, self._settings.policy, waiting)
        for prediction in found:
            reservation = expected.get(prediction.gang)
            is_known = reservation is not None and (
                reservation.is_open or reservation.start_ms > self._now_ms
            )
            yield replace(prediction, expected=reservation if is_known else None)

    def _check_empty_cluster(self, prediction: Prediction) -> Prediction:
        """Change the prediction to `NEVER` if the gang cannot start on an empty cluster.

        The empty cluster still contains the pods of other schedulers. If the gang could start
        without the other schedulers' pods, the prediction stays `LATER`, and the reason names these
        pods. DaemonSet pods and static pods are never removed, because they would be recreated on
        their nodes.
        """
        if prediction.start is not Start.LATER or prediction.expected is not None:
            return prediction
        # Remove this scheduler's other gangs.
        whole = list(self._with_pods())
        gangs = assemble(whole, self._settings.options, self._now_ms).snapshot.gangs
        others = {task.key for gang in gangs if gang.key != prediction.gang for task in gang.tasks}
        cluster = [
            obj
            for obj in whole
            if not (obj.get("kind") == POD_GROUP.kind and key_of(obj) != prediction.gang)
            and not is_pod_of(obj, others)
        ]
        gang, alone = self._predict_in(cluster, prediction.gang)
        if alone.start in (Start.NOW, Start.SOON):
            return prediction
        tasks = {task.key for task in gang.tasks}
        kept_owners = ("DaemonSet", "Node")
        foreign = sorted(
            key_of(obj)
            for obj in cluster
            if obj.get("kind") == POD.kind
            and key_of(obj) not in tasks
            and not any(
                owner.get("kind") in kept_owners
                for owner in (obj.get("metadata") or {}).get("ownerReferences") or ()
            )
        )
        if foreign:
            rest = [obj for obj in cluster if not is_pod_of(obj, frozenset(foreign))]
            if self._predict_in(rest, prediction.gang)[1].start in (Start.NOW, Start.SOON):
                reason = alone.reason
                if reason is not None:
                    pods = "1 pod" if len(foreign) == 1 else f"{len(foreign)} pods"
                    named = f"{foreign[0]} and others" if len(foreign) > 1 else foreign[0]
                    blame = f"the gang would start without {pods} of other schedulers, {named}"
                    reason = replace(reason, message=f"{reason.message}; {blame}")
                return replace(prediction, reason=reason)
        return replace(prediction, start=Start.NEVER, reason=alone.reason)

    def _predict_in(self, objects: Sequence[Manifest], key: str) -> tuple[Gang, Prediction]:
        read, plan = self._run_session(objects)
        [gang] = [gang for gang in read.snapshot.gangs if gang.key == key]
        return gang, self._predict_gang(gang, plan, read.snapshot, {})


def _dated(obj: Manifest, now_ms: int) -> Manifest:
    return {**obj, "metadata": {**obj["metadata"], "creationTimestamp": time_text(now_ms)}}


# --- predictions ---------------------------------------------------------------------------------
