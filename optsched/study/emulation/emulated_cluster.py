"""A cluster in memory: objects, a scheduler, and emulated nodes.

It has the same ports as a real cluster, so that both can play the same scenarios. Time passes only
on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.cluster.decisions import Allocate
from optsched.formats.codec.snapshot_annotations import time_text
from optsched.formats.snapshots.assembly import assemble
from optsched.plugins.shares.past_usage import half_life_of
from optsched.session.session import SessionContext, run_session
from optsched.session.usage import UsageKeeper

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched.cluster.decisions import Plan
    from optsched.formats.codec.pods.reader import DecodeOptions
    from optsched.policy.policy import Policy
    from optsched.problem.problem import Problem

COMPLETE_ANNOTATION = "optsched.io/complete"
FAIL_ANNOTATION = "optsched.io/fail"


class EmulatedCluster:
    """Objects by kind and key, scheduled by sessions.

    `now_ms`: the time there. `last_plan`: the last plan; None before the first.
    """

    def __init__(
        self,
        policy: Policy,
        context: SessionContext | None = None,
        options: DecodeOptions | None = None,
    ) -> None:
        self.now_ms = 0
        self.last_plan: Plan | None = None
        self._policy = policy
        self._context = context or SessionContext()
        self._options = options
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._problem: Problem | None = None
        self._usage = UsageKeeper()

    def apply(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Create objects, or replace those that exist."""
        for manifest in manifests:
            obj = {**manifest, "metadata": {**manifest["metadata"]}}
            obj["metadata"].setdefault("creationTimestamp", time_text(self.now_ms))
            name, space = obj["metadata"]["name"], obj["metadata"].get("namespace")
            self._objects[obj["kind"], name if space is None else f"{space}/{name}"] = obj

    def delete(self, kind: str, key: str) -> None:
        """Delete an object if it exists."""
        self._objects.pop((kind, key), None)

    def objects(self, kind: str) -> Iterator[dict[str, Any]]:
        """The objects of a kind, in key order."""
        for found, key in sorted(self._objects):
            if found == kind:
                yield self._objects[found, key]

    def annotate(self, kind: str, key: str, annotations: Mapping[str, str]) -> None:
        """Add annotations to an object."""
        meta = self._objects[kind, key]["metadata"]
        meta["annotations"] = {**meta.get("annotations", {}), **annotations}

    def advance(self, milliseconds: int) -> None:
        """Advance the time: end pods as annotated, then run a session."""
        self.now_ms += milliseconds
        for pod in self.objects("Pod"):
            annotations = pod["metadata"].get("annotations", {})
            if pod.get("status", {}).get("phase") == "Running":
                if COMPLETE_ANNOTATION in annotations:
                    pod["status"] = {"phase": "Succeeded"}
                elif FAIL_ANNOTATION in annotations:
                    pod["status"] = {"phase": "Failed"}
        snapshot = assemble(self._objects.values(), self._options, self.now_ms).snapshot
        report = run_session(
            self._usage.noted(snapshot, half_life_of(self._policy.rules)),
            self._policy,
            self._context,
            self._problem,
        )
        self._problem = report.problem
        self.carry_out(report.plan)

    def carry_out(self, plan: Plan) -> None:
        """See `Binder`: pods run as soon as they are bound."""
        self.last_plan = plan
        for action in plan.actions:
            if isinstance(action, Allocate):
                pod = self._objects["Pod", action.task]
                pod["spec"] = {**pod["spec"], "nodeName": action.node}
                pod["status"] = {"phase": "Running"}
