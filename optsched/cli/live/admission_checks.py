"""Check by dry runs and ResourceQuotas whether the API server would admit new objects.

A dry run (`dryRun=All`) checks namespaces, permissions, webhooks and LimitRanges, which a snapshot
does not contain. The API server does not count a dry run as quota usage. For each ResourceQuota,
this module therefore also adds up the requests of new pods.

Snapshots omit ResourceQuotas with scopes, because scopes select pods by fields that PodGroups lack.
This module reads the pods of jobs, and therefore also checks ResourceQuotas with scopes. Source:
`podMatchesScopeFunc` in k8s.io/kubernetes, pkg/quota/v1/evaluator/core/pods.go.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields
from optsched.api.json_fields import records, subobject
from optsched.api.kinds import JOB, POD, POD_GROUP, QUEUE, RESOURCE_QUOTA, Ref, kind_of
from optsched.api.wellknown import TASK_SPEC
from optsched.cli.base.connection import Exit, Failure
from optsched.cli.base.table_columns import name_of, namespace_of
from optsched.cluster.amounts import amount_of
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.controllers.job.preview import Expanded, expand_job
from optsched.formats.codec.core_schemas import POD as POD_SCHEMA
from optsched.formats.codec.pod_limits import parse_quota
from optsched.formats.codec.pods.resource_requests import pod_request, pod_usage
from optsched.units import CPU, MEMORY, amount_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optsched.api.kinds import Kind
    from optsched.cluster.snapshot import Quota
    from optsched.kube.client.client import Client
    from optsched.kube.client.errors import ApiError
    from optsched.kube.client.listing import Raw


# --- ResourceQuotas ------------------------------------------------------------------------------

_SCOPES: Final = ("scopes", "scopeSelector")
_TERMS: Final = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


@dataclass(frozen=True, slots=True)
class _ScopedQuota:
    """A ResourceQuota with scopes; it limits only pods that match all `expressions`."""

    quota: Quota
    expressions: tuple[Mapping[str, Any], ...]

    def counts(self, pod: Raw) -> bool:
        """Return whether a pod in the quota's namespace counts towards the quota."""
        return all(_matches(pod["spec"], expression) for expression in self.expressions)


def _matches(spec: Raw, expression: Mapping[str, Any]) -> bool:
    """Return whether a pod matches an expression; False for scopes that do not select pods."""
    match expression.get("scopeName"):
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return _is_best_effort(spec)
        case "NotBestEffort":
            return not _is_best_effort(spec)
        case "PriorityClass":
            return _has_class(str(spec.get("priorityClassName") or ""), expression)
        case "CrossNamespacePodAffinity":
            affinity = subobject(spec, "affinity")
            terms = [
                subobject(term, "podAffinityTerm") or term
                for kind in ("podAffinity", "podAntiAffinity")
                for name in _TERMS
                for term in records(subobject(affinity, kind), name)
            ]
            return any(
                term.get("namespaces") or term.get("namespaceSelector") is not None
                for term in terms
            )
        case _:
            return False


def _is_best_effort(spec: Raw) -> bool:
    """Return whether no container has a request or a limit for CPU or memory."""
    containers = [*records(spec, "containers"), *records(spec, "initContainers"), spec]
    return not any(
        str(amount) != "0"
        for container in containers
        for listed in ("requests", "limits")
        for name, amount in subobject(subobject(container, "resources"), listed).items()
        if name in (CPU, MEMORY)
    )


def _has_class(name: str, expression: Mapping[str, Any]) -> bool:
    given = expression.get("values")
    values = given if isinstance(given, list) else []
    match expression.get("operator"):
        case "In":
            return name != "" and name in values
        case "NotIn":
            return name not in values
        case "DoesNotExist":
            return name == ""
        case _:
            return name != ""


@dataclass(frozen=True, slots=True)
class _QuotaRequest:
    """The amount by which new pods increase a ResourceQuota's usage of one resource."""

    quota: str
    resource: str
    hard: int
    used: int
    request: int

    @property
    def exceeds(self) -> bool:
        """Whether the request exceeds the unused part of the quota."""
        return self.used + self.request > self.hard

    def texts(self) -> tuple[str, str, str]:
        allowed, used, request = (
            amount_text(self.resource, amount) for amount in (self.hard, self.used, self.request)
        )
        return allowed, used, request


class QuotaUsage:
    """The ResourceQuota usage of the cluster and of the hypothetical pods added so far."""

    def __init__(self, objects: Iterable[Raw]) -> None:
        """Read the ResourceQuotas among the objects of the cluster and of the user's files."""
        self._quotas: list[_ScopedQuota] = []
        self._requested: dict[tuple[str, str], int] = {}
        for obj in objects:
            spec = obj.get("spec")
            if kind_of(obj) != RESOURCE_QUOTA or not isinstance(spec, dict):
                continue
            plain = {name: value for name, value in spec.items() if name not in _SCOPES}
            quota, _ = parse_quota({**obj, "spec": plain})
            if quota is None:
                continue
            scopes = spec.get("scopes")
            expressions = (
                *(
                    {"scopeName": scope, "operator": "Exists"}
                    for scope in (scopes if isinstance(scopes, list) else ())
                ),
                *records(subobject(spec, "scopeSelector"), "matchExpressions"),
            )
            self._quotas.append(_ScopedQuota(quota, expressions))

    def add(self, namespace: str, pods: Sequence[Raw]) -> tuple[Reason, bool] | None:
        """Add pods to the usage; return why they exceed a quota, and whether they alone do."""
        charges = self._list_charges(namespace, pods)
        self._charge(charges)
        over = next((charge for charge in charges if charge.exceeds), None)
        if over is None:
            return None
        allowed, used, request = over.texts()
        message = (
            f"the ResourceQuota {over.quota} allows {allowed}: {used} are in use, "
            f"the pods that must start together request {request}"
        )
        return Reason(ReasonCode.QUOTA, message), over.request > over.hard

    def add_fitting(self, namespace: str, pods: Sequence[Raw]) -> tuple[list[Raw], Reason | None]:
        """Add each pod that fits the quotas; return these pods, and why the others do not fit."""
        kept: list[Raw] = []
        first: _QuotaRequest | None = None
        for pod in pods:
            charges = self._list_charges(namespace, [pod])
            over = next((charge for charge in charges if charge.exceeds), None)
            if over is None:
                self._charge(charges)
                kept.append(pod)
            first = first or over
        if first is None:
            return kept, None
        number = len(pods) - len(kept)
        what = "1 pod is" if number == 1 else f"{number} pods are"
        allowed, used, request = first.texts()
        message = (
            f"{what} not created: the ResourceQuota {first.quota} allows {allowed}; {used} are in "
            f"use, including other new pods, and one more pod requests {request}"
        )
        return kept, Reason(ReasonCode.QUOTA, message)

    def _list_charges(self, namespace: str, pods: Sequence[Raw]) -> list[_QuotaRequest]:
        usages = []
        for pod in pods:
            fields = Fields(pod, POD_SCHEMA, "", [])
            spec = fields.record("spec")
            usages.append(pod_usage(spec, pod_request(spec, fields.record("status"))))
        charges = []
        for scoped in (q for q in self._quotas if q.quota.namespace == namespace):
            quota = scoped.quota
            total: Counter[str] = Counter()
            for pod, usage in zip(pods, usages, strict=True):
                if scoped.counts(pod):
                    total.update(usage)
            for name, hard in quota.hard:
                before = amount_of(quota.used, name) + self._requested.get((quota.key, name), 0)
                if request := total.get(name, 0):
                    charges.append(_QuotaRequest(quota.key, name, hard, before, request))
        return charges

    def _charge(self, charges: Iterable[_QuotaRequest]) -> None:
        for each in charges:
            key = (each.quota, each.resource)
            self._requested[key] = self._requested.get(key, 0) + each.request


# --- dry runs ------------------------------------------------------------------------------------

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
    rejection
        The reason why the API server rejects an object; empty if all objects are admitted.
    quota
        The message about an exceeded ResourceQuota; empty if no quota is exceeded.
    remarks
        The reason why some objects could not be checked, one sentence per kind of object.
    """

    client: Client
    rejection: str = ""
    quota: str = ""
    remarks: tuple[str, ...] = ()

    async def create(self, kind: Kind, obj: Raw) -> Raw:
        """Return an object as mutated by admission, or unchanged if the dry run fails.

        Raises KubeError if the API server sends no valid response, and `Failure` if the cluster
        already has a job with the same name.
        """
        from optsched.kube.client.errors import AlreadyExists, ApiError

        if self.rejection or self.quota:
            return obj
        ref = Ref(kind, namespace_of(obj), name_of(obj))
        try:
            return await self.client.create(ref, obj, dry_run=True)
        except AlreadyExists as e:
            if kind == QUEUE:
                return await self._change(ref, obj)
            if kind != JOB:
                return obj
            raise _name_conflict(ref) from e
        except ApiError as e:
            # A quota or a webhook may reject a job before the API server finds that the job's name
            # is taken.
            if kind == JOB and await self._exists(ref):
                raise _name_conflict(ref) from e
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
            self.rejection = sentence

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
        admitted_pods: dict[str, Raw] = {}
        found = []
        for pod in pods:
            # All pods of a task get the same key, because these pods differ only in name and index.
            meta = pod["metadata"]
            task = meta.get("annotations", {}).get(TASK_SPEC)
            key = f"{namespace_of(pod)}/{task}"
            if task is None:
                kept = {name: value for name, value in meta.items() if name != "name"}
                key = json.dumps([kept, pod.get("spec")], sort_keys=True, default=str)
            if key not in admitted_pods:
                admitted_pods[key] = await self.create(POD, pod)
            found.append(merge_admitted(pod, admitted_pods[key]))
        return found


def _name_conflict(job: Ref) -> Failure:
    text = f"job {job.name} exists already in namespace {job.namespace}"
    return Failure(f"{text}: choose another name", Exit.CONFLICT)


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
