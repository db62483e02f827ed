"""JobFlows: graphs of jobs; each job is created from a JobTemplate.

Names, phases and labels follow Volcano's pkg/controllers/jobflow and jobtemplate, and
docs/design/jobflow. `dependsOn.probe` and `patch` follow Volcano's design document; Volcano's
controller ignores both fields. With probes, a job may start before the jobs on which it depends
complete, as soon as their probed tasks are ready. A patch changes single fields of a template; list
items are matched by name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import JobPhase
from optsched.api.jobflow import FlowPhase, RetainPolicy, parse_jobflow
from optsched.api.json_fields import (
    acting_for,
    annotations_of,
    controller_of,
    is_controlled_by,
    is_terminating,
    job_phase_of,
    labels_of,
    meta_of,
    name_of,
    namespace_of,
    owner_reference,
    records,
    replacement_patch,
    spec_of,
    status_of,
    subobject,
    uid_of,
)
from optsched.api.kinds import JOB, JOB_FLOW, JOB_TEMPLATE, POD, Ref
from optsched.api.meta import EventType
from optsched.api.wellknown import TASK_SPEC
from optsched.controllers.controller import Controller, Index, existing, owner_wakes
from optsched.controllers.effects import (
    Again,
    AskQuestion,
    Create,
    PatchStatus,
    Question,
    Then,
    delete_object,
    event_about,
    patch_status,
)
from optsched.units import TimestampError, format_time, parse_time_ms
from optsched.units.duration import DurationError, parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched.api.jobflow import Flow, JobFlow
    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import World
    from optsched.controllers.effects import Effect, Effects, Emit

BY_TEMPLATE: Final = "volcano.sh/createdByJobTemplate"
BY_FLOW: Final = "volcano.sh/createdByJobFlow"
ASK_EVERY_S: Final = 2.0

_LISTS: Final = {
    "pendingJobs": {JobPhase.PENDING},
    "runningJobs": {JobPhase.RUNNING},
    "failedJobs": {JobPhase.FAILED},
    "completedJobs": {JobPhase.COMPLETED},
    "terminatedJobs": {JobPhase.TERMINATED},
}
_LOST: Final = frozenset({JobPhase.FAILED, JobPhase.TERMINATED})
_OVER: Final = frozenset({FlowPhase.FAILED, FlowPhase.TERMINATING, FlowPhase.SUCCEED})
_KEYS: Final = ("name", "mountPath")
"""Fields that identify list items: a patch item changes the item with the same field value."""


def job_name(flow: str, template: str) -> str:
    """Return the name of the job that a flow creates from a template."""
    return f"{flow}-{template}"


@dataclass(frozen=True, slots=True)
class _Case:
    """A JobFlow, and its jobs keyed by template name.

    `foreign` lists the job names of the JobFlow that jobs of other owners already have.
    `deleted_jobs` holds the templates whose job completed and was then deleted, for example after
    its TTL.
    """

    flow: JobFlow
    manifest: Manifest
    jobs: Mapping[str, Manifest]
    foreign: tuple[str, ...]
    deleted_jobs: frozenset[str]

    def is_completed_before(self, template: str) -> bool:
        """Return whether a template's job has completed; it may have been deleted afterwards."""
        job = self.jobs.get(template)
        is_completed = job is not None and job_phase_of(job) == JobPhase.COMPLETED
        return is_completed or template in self.deleted_jobs

    def emit(self, type_: EventType, reason: str, message: str) -> Emit:
        """Return an event about the JobFlow."""
        return event_about(JOB_FLOW, self.manifest, type_, reason, message, code=message)


def reconcile(manifest: Manifest, world: World) -> Effects:
    """Return the effects that create or delete jobs, and the patch of the JobFlow's status."""
    flow, _ = parse_jobflow(manifest)
    if flow is None or is_terminating(manifest):
        return ()
    if flow.status.phase in _OVER and not flow.status.is_new:
        if flow.status.phase is not FlowPhase.SUCCEED or flow.retain is not RetainPolicy.DELETE:
            return ()
        return tuple(
            delete_object(JOB, job)
            for job in world.owned_by(JOB, JOB_FLOW, flow.meta.uid)
            if not is_terminating(job)
        )
    jobs: dict[str, Manifest] = {}
    foreign: list[str] = []
    deleted_jobs: set[str] = set()
    for template in dict.fromkeys(each.name for each in flow.flows):
        name = job_name(flow.meta.name, template)
        job = world.get(JOB, flow.meta.namespace, name)
        if job is None:
            deleted_jobs |= {template} if name in flow.status.completed else set()
            continue
        if is_controlled_by(job, JOB_FLOW, flow.meta.uid):
            jobs[template] = job
        else:
            foreign.append(name)
    case = _Case(flow, manifest, jobs, tuple(foreign), frozenset(deleted_jobs))
    job_phases = [job_phase_of(job) for job in jobs.values()]
    names = {each.name for each in flow.flows}
    num_completed = sum(case.is_completed_before(name) for name in names)
    phase = FlowPhase.PENDING
    if any(each in _LOST for each in job_phases):
        phase = FlowPhase.FAILED
    elif names and num_completed == len(names):
        phase = FlowPhase.SUCCEED
    elif num_completed or JobPhase.RUNNING in job_phases:
        phase = FlowPhase.RUNNING
    steps = () if phase is FlowPhase.FAILED else tuple(_start_jobs(case, world))
    return (*_patch_status(case, phase), *steps)


# --- dependencies --------------------------------------------------------------------------------


def _start_jobs(case: _Case, world: World) -> Iterator[Effect]:
    for name in case.foreign:
        message = f"job {name} exists already and does not belong to this JobFlow"
        yield case.emit(EventType.WARNING, "ForeignJob", message)
    created: set[str] = set()
    for flow in case.flow.flows:
        name = job_name(case.flow.meta.name, flow.name)
        has_job = flow.name in case.jobs or flow.name in case.deleted_jobs or flow.name in created
        if has_job or name in case.foreign:
            continue
        wait = _check_dependencies(case, flow, world)
        if wait is None:
            created.add(flow.name)
            yield from _create_job(case, flow, world)
        else:
            yield from wait


_REACHED: Final = {
    "Running": ("Running", "Succeeded"),
    "Completed": ("Succeeded",),
    "Pending": ("Pending", "Running", "Succeeded"),
}
"""Maps the phase in a probe to the pod phases that satisfy the probe."""


def _check_dependencies(case: _Case, flow: Flow, world: World) -> tuple[Effect, ...] | None:
    """Return None if a job may start; if it must wait, return the effects that send its probes."""
    targets = [target for target in flow.targets if not case.is_completed_before(target)]
    waited = [case.jobs[target] for target in targets if target in case.jobs]
    if not targets:
        return None
    probes = flow.probes
    if len(waited) < len(targets) or not (probes.http or probes.tcp or probes.tasks):
        return ()
    pods = [pod for job in waited for pod in world.owned_by(POD, JOB, uid_of(job))]
    for probe in probes.tasks:
        members = _select_task(pods, probe.task)
        reached = _REACHED.get(probe.phase, (probe.phase,))
        if not members or any(status_of(pod).get("phase") not in reached for pod in members):
            return ()
    # None stands for a probe that cannot be sent, because the pod is missing or has no address.
    questions: list[Question | None] = []
    probed = [
        *((probe.task, probe.port, probe.path or "/", probe.header) for probe in probes.http),
        *((probe.task, probe.port, "", ("", "")) for probe in probes.tcp),
    ]
    for task, port, path, header in probed:
        members = _select_task(pods, task)
        addresses = [str(status_of(pod).get("podIP") or "") for pod in members] or [""]
        questions += [Question(a, port, path, header) if a else None for a in addresses]
    if questions and all(q is not None and world.is_answered(q) for q in questions):
        return None
    if not (probes.http or probes.tcp):
        return None
    asks = tuple(AskQuestion(q) for q in questions if q is not None and not world.is_answered(q))
    return (*asks, Again(ASK_EVERY_S))


def _select_task(pods: Iterable[Manifest], task: str) -> list[Manifest]:
    """Return the pods of a task, or all pods if `task` is empty."""
    return [
        pod
        for pod in pods
        if not task or task == (labels_of(pod).get(TASK_SPEC) or annotations_of(pod).get(TASK_SPEC))
    ]


# --- the jobs ------------------------------------------------------------------------------------


def _create_job(case: _Case, flow: Flow, world: World) -> Iterator[Effect]:
    meta = case.flow.meta
    template = world.get(JOB_TEMPLATE, meta.namespace, flow.name)
    if template is None:
        message = f"JobTemplate {flow.name} does not exist in namespace {meta.namespace}"
        yield case.emit(EventType.WARNING, "JobTemplateNotFound", message)
        return
    name = job_name(meta.name, flow.name)
    origin = {
        BY_TEMPLATE: f"{meta.namespace}.{flow.name}",
        BY_FLOW: f"{meta.namespace}.{meta.name}",
    }
    body = {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": {key: value for key, value in origin.items() if len(value) <= 63},
            "annotations": {**origin, **acting_for(case.manifest, template)},
            "ownerReferences": [owner_reference(JOB_FLOW, case.manifest)],
        },
        "spec": patched(spec_of(template), flow.patch),
    }
    event = case.emit(EventType.NORMAL, "Created", f"create a job named {name}!")
    yield Then((Create(JOB, body), event))


def patched(before: Any, patch: Any) -> Any:  # noqa: ANN401  values of JSON
    """Return a patched JSON value: mappings are merged, and list items are matched by `_KEYS`.

    None in the patch removes a field. A list whose items lack a common key field is replaced.
    """
    if isinstance(before, dict) and isinstance(patch, dict):
        changed = {name: patched(before.get(name), value) for name, value in patch.items()}
        return {name: v for name, v in {**before, **changed}.items() if v is not None}
    if not (isinstance(before, list) and isinstance(patch, list) and before and patch):
        return patch
    items = [*before, *patch]
    key = next((k for k in _KEYS if all(isinstance(e, dict) and e.get(k) for e in items)), "")
    if not key:
        return patch
    changes = {each[key]: each for each in patch}
    kept = [patched(each, changes.pop(each.get(key), {})) for each in before]
    return [*kept, *changes.values()]


# --- the status ----------------------------------------------------------------------------------


def _patch_status(case: _Case, phase: FlowPhase) -> tuple[PatchStatus, ...]:
    have = status_of(case.manifest)
    desired: dict[str, Any] = {"state": {"phase": phase.value}}
    jobs = sorted(case.jobs.values(), key=name_of)
    listed_phases = {p for phases in _LISTS.values() for p in phases}
    for field, phases in _LISTS.items():
        desired[field] = [name_of(job) for job in jobs if job_phase_of(job) in phases]
    deleted_jobs = sorted(job_name(case.flow.meta.name, template) for template in case.deleted_jobs)
    desired["completedJobs"] = sorted((*desired["completedJobs"], *deleted_jobs))
    desired["unKnowJobs"] = [name_of(job) for job in jobs if job_phase_of(job) not in listed_phases]
    before = {each.get("name"): each for each in have.get("jobStatusList") or ()}
    current = {name_of(job): _describe_job(job, before.get(name_of(job), {})) for job in jobs}
    kept = {name: before[name] for name in deleted_jobs if name in before}
    desired["jobStatusList"] = [each for _, each in sorted({**kept, **current}.items())]
    known_conditions = subobject(have, "conditions")
    conditions = {name: known_conditions[name] for name in deleted_jobs if name in known_conditions}
    for job in jobs:
        fields = {
            "phase": job_phase_of(job) or None,
            "createTime": meta_of(job).get("creationTimestamp"),
            "runningDuration": status_of(job).get("runningDuration"),
            "taskStatusCount": status_of(job).get("taskStatusCount"),
        }
        conditions[name_of(job)] = {name: value for name, value in fields.items() if value}
    desired["conditions"] = conditions
    changed = {
        n: v
        for n, v in desired.items()
        if (have.get(n) or ([] if isinstance(v, list) else {})) != v
    }
    if not changed:
        return ()
    if "conditions" in changed:
        changed["conditions"] = replacement_patch(known_conditions, changed["conditions"])
    return (patch_status(JOB_FLOW, case.manifest, changed),)


def _describe_job(job: Manifest, before: Mapping[str, Any]) -> dict[str, Any]:
    status, state = status_of(job), job_phase_of(job)
    since = subobject(status, "state").get("lastTransitionTime")
    histories = list(before.get("runningHistories") or [])
    if state and not (histories and histories[-1].get("state") == state):
        # A phase change ends the last entry of the history and adds a new entry.
        if histories and since:
            histories[-1] = {**histories[-1], "endTimestamp": since}
        histories.append({**({"startTimestamp": since} if since else {}), "state": state})
    created, ran = str(meta_of(job).get("creationTimestamp") or ""), status.get("runningDuration")
    end: str | None = None
    if created and isinstance(ran, str):
        with suppress(TimestampError, DurationError):
            end = format_time(parse_time_ms(created) + parse_duration_ms(ran))
    found = {
        "name": name_of(job),
        "state": state or None,
        "startTimestamp": created or None,
        "endTimestamp": end,
        "restartCount": status.get("retryCount") or None,
        "runningHistories": histories or None,
    }
    return {name: value for name, value in found.items() if value is not None}


# --- wakes ---------------------------------------------------------------------------------------


_BY_TEMPLATE: Final = Index(
    JOB_FLOW,
    "template",
    lambda flow: [
        f"{namespace_of(flow)}/{each.get('name')}" for each in records(spec_of(flow), "flows")
    ],
)
_PROBING: Final = Index(
    JOB_FLOW,
    "probes",
    lambda flow: [
        namespace_of(flow)
        for each in records(spec_of(flow), "flows")
        if subobject(subobject(each, "dependsOn"), "probe")
    ],
)


def _template_wakes(template: Manifest, world: World) -> Iterator[Ref]:
    key = f"{namespace_of(template)}/{name_of(template)}"
    for flow in world.list_indexed(_BY_TEMPLATE, key):
        yield Ref(JOB_FLOW, namespace_of(flow), name_of(flow))


def _pod_wakes(pod: Manifest, world: World) -> Iterator[Ref]:
    """Yield the JobFlow of a pod's job if any JobFlow in the namespace has probes."""
    if not world.list_indexed(_PROBING, namespace_of(pod)):
        return
    owner = controller_of(pod)
    if owner is None:
        return
    job = world.get(JOB, namespace_of(pod), str(owner.get("name")))
    if job is not None and uid_of(job) == owner.get("uid"):
        yield from owner_wakes(JOB_FLOW)(job, world)


JOB_FLOWS: Final = Controller(
    name="jobflow",
    kind=JOB_FLOW,
    decide=existing(JOB_FLOW, reconcile),
    wakes={JOB: owner_wakes(JOB_FLOW), JOB_TEMPLATE: _template_wakes, POD: _pod_wakes},
    indexes=(_BY_TEMPLATE, _PROBING),
)


# --- templates -----------------------------------------------------------------------------------

_JOBS_OF: Final = Index(
    JOB, "template", lambda job: filter(None, (annotations_of(job).get(BY_TEMPLATE),))
)


def reconcile_template(template: Manifest, world: World) -> Effects:
    """Return the status patch that lists the jobs created from a template."""
    key = f"{namespace_of(template)}.{name_of(template)}"
    jobs = sorted(name_of(job) for job in world.list_indexed(_JOBS_OF, key))
    if is_terminating(template) or (status_of(template).get("jobDependsOnList") or []) == jobs:
        return ()
    body = {"status": {"jobDependsOnList": jobs}}
    ref = (namespace_of(template), name_of(template))
    return (PatchStatus(JOB_TEMPLATE, *ref, body, uid_of(template)),)


def _job_wakes_template(job: Manifest, _: World) -> Iterator[Ref]:
    key = annotations_of(job).get(BY_TEMPLATE, "")
    namespace, name = namespace_of(job), key.removeprefix(f"{namespace_of(job)}.")
    if key and name != key:
        yield Ref(JOB_TEMPLATE, namespace, name)


JOB_TEMPLATES: Final = Controller(
    name="jobtemplate",
    kind=JOB_TEMPLATE,
    decide=existing(JOB_TEMPLATE, reconcile_template),
    wakes={JOB: _job_wakes_template},
    indexes=(_JOBS_OF,),
)
