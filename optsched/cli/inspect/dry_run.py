"""Hypothetical jobs as the API server would admit them (`dryRun=All`: nothing is stored).

Checks what no snapshot shows: namespaces, rights, webhooks, LimitRanges. ResourceQuotas
are added up here, for a request without effect uses nothing up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from optsched.api.fields import Fields
from optsched.api.kinds import JOB, POD, RESOURCE_QUOTA, Ref, find_kind
from optsched.api.wellknown import TASK_SPEC
from optsched.cli.base.connection import Exit, Failure
from optsched.cli.objects.table_columns import name_of, namespace_of
from optsched.cluster.amounts import amount_of
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.formats.codec.core_schemas import POD as POD_SCHEMA
from optsched.formats.codec.pod_limits import parse_quota
from optsched.formats.codec.pods.resource_requests import pod_request, pod_usage
from optsched.plugins.wording import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched.cluster.snapshot import Quota
    from optsched.kube.client.client import Client
    from optsched.kube.client.listing import Raw

_ADMITTED: Final = (
    *("overhead", "nodeSelector", "tolerations", "affinity", "schedulingGates"),
    *("priority", "priorityClassName", "preemptionPolicy", "runtimeClassName"),
)
"""Fields of a pod that admission may change and schedulers read."""

_NO_RIGHT: Final = "cannot create resource"
_USED_UP: Final = "exceeded quota"
_NOT_DRY: Final = "does not support dry run"


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The API server's answer to the dry run of one job.

    Attributes
    ----------
    refusal
        Why it would not take the job, or a pod of it; empty where it would.
    pods
        The pods with what admission adds to them.
    quota
        The quotas that are used up now; empty where none is.
    remark
        The checks that could not be made; empty where all could.

    """

    refusal: str
    pods: Sequence[Raw]
    quota: str = ""
    remark: str = ""


async def create_dry_run(client: Client, job: Raw, pods: Sequence[Raw]) -> Rehearsed:
    """Dry-run a job and one pod of each of its tasks; return the API server's answers.

    KubeError where no check can be made, `Failure` where the job exists already.
    """
    from optsched.kube.client.errors import AlreadyExists, ApiError

    meta = {name: value for name, value in job["metadata"].items() if name != "uid"}
    try:
        ref = Ref(JOB, namespace_of(job), name_of(job))
        await client.create_dry_run(ref, {**job, "metadata": meta})
        admitted: dict[str, Raw] = {}
        for pod in pods:
            if _task(pod) not in admitted:
                ref = Ref(POD, namespace_of(pod), name_of(pod))
                admitted[_task(pod)] = await client.create_dry_run(ref, pod)
    except AlreadyExists as e:
        if ref.kind == POD:
            return Rehearsed("", pods)
        text = f"Job {ref.namespace}/{ref.name}: there is one already: give the job another name"
        raise Failure(text, Exit.CONFLICT) from e
    except ApiError as e:
        is_open = _NOT_DRY in str(e) or (ref.kind == POD and _NO_RIGHT in str(e))
        said = f"{ref.kind.kind} {ref.namespace}/{ref.name}: {e.message or e.title}"
        if is_open:
            return Rehearsed("", pods, remark=said)
        is_used_up = ref.kind == POD and _USED_UP in str(e)
        return Rehearsed("", pods, said) if is_used_up else Rehearsed(said, pods)
    return Rehearsed("", [merge_admitted(pod, admitted[_task(pod)]) for pod in pods])


def _task(pod: Raw) -> str:
    return str(pod["metadata"].get("annotations", {}).get(TASK_SPEC, ""))


def merge_admitted(pod: Raw, admitted: Raw) -> Raw:
    """Return the pod with the changes that admission made to another pod of its task."""
    spec, found = dict(pod["spec"]), admitted.get("spec") or {}
    spec |= {name: found[name] for name in _ADMITTED if name in found}
    for kind in ("initContainers", "containers"):
        given = {each.get("name"): each.get("resources") for each in found.get(kind) or ()}
        spec[kind] = [
            {**each, "resources": given.get(each.get("name")) or each.get("resources") or {}}
            for each in spec.get(kind) or ()
        ]
    return {**pod, "spec": spec}


# --- ResourceQuotas ------------------------------------------------------------------------------


def quotas_in(objects: Iterable[Raw]) -> list[Quota]:
    """Return the ResourceQuotas without scopes."""
    kinds = ((obj, find_kind(str(obj.get("apiVersion")), str(obj.get("kind")))) for obj in objects)
    found = (parse_quota(obj)[0] for obj, kind in kinds if kind == RESOURCE_QUOTA)
    return [quota for quota in found if quota is not None]


class Usage:
    """The rest of ResourceQuotas after the pods counted so far."""

    def __init__(self, quotas: Sequence[Quota]) -> None:
        self._quotas = quotas
        self._asked: dict[tuple[str, str], int] = {}

    def add(self, namespace: str, pods: Sequence[Raw]) -> tuple[Reason, bool] | None:
        """Count pods; return None if they fit, else the reason and whether it is permanent."""
        total: dict[str, int] = {}
        for pod in pods:
            fields = Fields(pod, POD_SCHEMA, "", [])
            spec = fields.record("spec")
            for name, amount in pod_usage(spec, pod_request(spec, fields.record("status"))).items():
                total[name] = total.get(name, 0) + amount
        found = None
        for quota in (q for q in self._quotas if q.namespace == namespace):
            for name, hard in quota.hard:
                asked, key = total.get(name, 0), (quota.key, name)
                before = self._asked.get(key, 0)
                used = amount_of(quota.used, name) + before
                self._asked[key] = before + asked
                if asked and used + asked > hard and found is None:
                    found = _too_much(quota, name, (hard, used, asked)), asked > hard
        return found


def _too_much(quota: Quota, name: str, amounts: tuple[int, int, int]) -> Reason:
    hard, used, asked = (amount_text(name, amount) for amount in amounts)
    return Reason(
        ReasonCode.QUOTA,
        f"the ResourceQuota {quota.key} allows {hard}: {used} are in use, "
        f"its minimum asks for {asked}",
    )
