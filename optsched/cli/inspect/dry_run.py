"""Dry runs of create requests: the API server admits or rejects objects without storing them.

A dry run (`dryRun=All`) also checks namespaces, permissions, webhooks and LimitRanges, which a
snapshot does not contain. The API server does not count a dry run as quota usage.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import JOB, POD, POD_GROUP, QUEUE, Ref
from optsched.api.wellknown import TASK_SPEC
from optsched.cli.base.connection import Exit, Failure
from optsched.cli.objects.table_columns import name_of, namespace_of
from optsched.controllers.job.preview import Expanded, expand_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.api.kinds import Kind
    from optsched.kube.client.client import Client
    from optsched.kube.client.errors import ApiError
    from optsched.kube.client.listing import Raw

UID: Final = "what-if"
"""The UID of hypothetical jobs, which do not exist in the cluster."""

_ADMITTED: Final = (
    *("overhead", "nodeSelector", "tolerations", "affinity", "schedulingGates"),
    *("priority", "priorityClassName", "preemptionPolicy", "runtimeClassName"),
)
"""Pod spec fields that schedulers read and that admission may mutate."""

_NO_RIGHTS: Final = ("cannot create resource", "cannot patch resource")
_USED_UP: Final = "exceeded quota"
_NOT_DRY: Final = "does not support dry run"
_UNCHECKED: Final = {JOB: "job", POD: "pods", POD_GROUP: "PodGroup", QUEUE: "Queue"}


@dataclass(slots=True)
class DryRun:
    """Dry runs for the objects of one gang, and the API server's responses.

    Attributes
    ----------
    refusal
        The reason why the API server rejects an object; empty if all objects are admitted.
    quota
        The message about an exceeded ResourceQuota; empty if no quota is exceeded.
    remarks
        The reason why some objects could not be checked, one sentence per kind of object.

    """

    client: Client
    refusal: str = ""
    quota: str = ""
    remarks: tuple[str, ...] = ()

    async def create(self, kind: Kind, obj: Raw) -> Raw:
        """Return an object as mutated by admission, or unchanged if no dry run succeeded.

        Raises KubeError if no dry run is possible, and `Failure` if the cluster already has a
        job with the same name.
        """
        from optsched.kube.client.errors import AlreadyExists, ApiError

        if self.refusal or self.quota:
            return obj
        ref = Ref(kind, namespace_of(obj), name_of(obj))
        try:
            return await self.client.create(ref, obj, dry_run=True)
        except AlreadyExists as e:
            if kind == QUEUE:
                return await self._change(ref, obj)
            if kind != JOB:
                return obj
            raise _clash(ref) from e
        except ApiError as e:
            # A quota or a webhook may reject a job before the API server finds that its name is
            # taken.
            if kind == JOB and await self._exists(ref):
                raise _clash(ref) from e
            self._record(ref, e)
            return obj

    async def _exists(self, ref: Ref) -> bool:
        """Return whether an object exists; False if the user may not read it."""
        from optsched.kube.client.errors import ApiError

        try:
            await self.client.read_metadata(ref)
        except ApiError:
            return False
        return True

    async def _change(self, ref: Ref, obj: Raw) -> Raw:
        """Dry-run a patch of an existing object; return `obj` with the patched spec."""
        from optsched.kube.client.errors import ApiError

        try:
            changed = await self.client.patch(ref, {"spec": obj.get("spec") or {}}, dry_run=True)
        except ApiError as e:
            self._record(ref, e)
            return obj
        return {**obj, "spec": changed.get("spec") or {}}

    def _record(self, ref: Ref, error: ApiError) -> None:
        kind = ref.kind
        name = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
        sentence = f"{kind.kind} {name}: {error.message or error.title}"
        if _NOT_DRY in str(error) or (kind != JOB and any(t in str(error) for t in _NO_RIGHTS)):
            head = f"admission did not check the {_UNCHECKED.get(kind, kind.kind)}: "
            if not any(remark.startswith(head) for remark in self.remarks):
                self.remarks += (head + sentence,)
        elif kind != JOB and _USED_UP in str(error):
            self.quota = sentence
        else:
            self.refusal = sentence

    async def create_job(
        self, job: Raw, expanded: Expanded, classes: Mapping[str, Raw]
    ) -> Expanded:
        """Return the PodGroup and the pods of a job as mutated by admission.

        `expanded` holds the PodGroup and the pods before admission. `classes` holds the
        PriorityClasses, keyed by name.
        """
        meta = {name: value for name, value in job["metadata"].items() if name != "uid"}
        admitted = await self.create(JOB, {**job, "metadata": meta})
        meta = {**admitted["metadata"], "uid": UID}
        filled, _ = expand_job({**admitted, "metadata": meta}, classes)
        made = expanded if filled is None else filled
        group = await self.create_group(made.group)
        return Expanded(group, tuple(await self.create_pods(made.pods)), made.later)

    async def create_group(self, group: Raw) -> dict[str, Any]:
        """Return a PodGroup with its spec as mutated by admission."""
        admitted = await self.create(POD_GROUP, group)
        return {**group, "spec": admitted.get("spec") or group.get("spec") or {}}

    async def create_pods(self, pods: Iterable[Raw]) -> list[dict[str, Any]]:
        """Return pods as mutated by admission; pods with the same content share one dry run."""
        answers: dict[str, Raw] = {}
        found = []
        for pod in pods:
            key = _content(pod)
            if key not in answers:
                answers[key] = await self.create(POD, pod)
            found.append(merge_admitted(pod, answers[key]))
        return found


def _clash(job: Ref) -> Failure:
    text = f"job {job.name} exists already in namespace {job.namespace}"
    return Failure(f"{text}: choose another name", Exit.CONFLICT)


def _content(pod: Raw) -> str:
    """Return a key that is equal for pods that admission mutates in the same way.

    Pods of a task get the same key, because they differ only in name and index.
    """
    meta = pod["metadata"]
    task = meta.get("annotations", {}).get(TASK_SPEC)
    if task is not None:
        return f"{namespace_of(pod)}/{task}"
    kept = {name: value for name, value in meta.items() if name != "name"}
    return json.dumps([kept, pod.get("spec")], sort_keys=True, default=str)


def merge_admitted(pod: Raw, admitted: Raw) -> dict[str, Any]:
    """Return a pod with the fields that admission set on `admitted`, a pod of the same task."""
    spec, found = dict(pod["spec"]), admitted.get("spec") or {}
    spec |= {name: found[name] for name in _ADMITTED if name in found}
    for kind in ("initContainers", "containers"):
        given = {each.get("name"): each.get("resources") for each in found.get(kind) or ()}
        spec[kind] = [
            {**each, "resources": given.get(each.get("name")) or each.get("resources") or {}}
            for each in spec.get(kind) or ()
        ]
    return {**pod, "spec": spec}
