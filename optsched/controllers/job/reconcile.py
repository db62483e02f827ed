"""Reconcile one job with its pods, PodGroup, PVCs and plugin objects.

The controller first writes its decision to the job's status, and then changes the job's objects
until they match the status. If the controller restarts between these two steps, it continues from
the job's status.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from optsched.api import wellknown
from optsched.api.job import Iteration, JobAction, JobEvent, JobPhase, parse_job
from optsched.api.json_fields import (
    is_terminating,
    records,
    spec_of,
    uid_of,
)
from optsched.api.kinds import (
    COMMAND,
    CONFIG_MAP,
    JOB,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE,
    SECRET,
    SERVICE,
    Ref,
)
from optsched.api.meta import EventType
from optsched.controllers.bus_commands import (
    COMMANDS_OF,
    action_of,
    command_wakes,
    commands_for,
    delete_orphaned_commands,
    is_addressed_to,
)
from optsched.controllers.controller import Controller, Scope, existing, owner_wakes
from optsched.controllers.effects import (
    Again,
    Create,
    Propagation,
    Then,
    delete_object,
    event_about,
    patch_object,
)
from optsched.controllers.job.builtin_plugins import plugin_problems
from optsched.controllers.job.lifecycle_policies import apply_policies, awaited_deletions
from optsched.controllers.job.object_names import pod_name
from optsched.controllers.job.observed_job import (
    WHOLE,
    are_containers_ready,
    count_pods,
    keys_of_pod,
    observe_job,
    partition_key,
    pod_key,
    pods_to_delete,
    recheck_delay_ms,
    task_key,
    with_status,
)
from optsched.controllers.job.owned_objects import (
    LEFT_OVER_S,
    controlled,
    missing_claims,
    pod_maker,
    sync_owned_objects,
)
from optsched.controllers.job.podgroups import (
    desired_group,
    group_changes,
    is_admitted,
    why_waiting,
)
from optsched.controllers.job.status import (
    FINISHED,
    LIVING,
    NoTransition,
    after_action,
    after_kill,
    after_sync,
    status_patch,
    with_deleted_ended_pods,
    with_phase,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from optsched.api.job import Job, JobRestarts, JobStatus, PodDeletion, TaskSpec
    from optsched.api.json_fields import Manifest
    from optsched.controllers.controller import World
    from optsched.controllers.effects import Effect, Effects, Emit
    from optsched.controllers.job.lifecycle_policies import ObservedEvent
    from optsched.controllers.job.observed_job import ObservedJob
    from optsched.controllers.job.plugin_interface import KeyPair


CLAIM_AGAIN_S: Final = 2.0
"""Seconds until the next check for a missing PVC; its creation starts no reconciliation."""

MOST_COST: Final = 50_000
"""Maximum total cost of the pods that one reconciliation creates; see `_estimate_cost`."""

NEXT_PODS_S: Final = 0.01
"""Seconds after which a job with more pods to create is reconciled again."""

_PLUGIN_ERROR: Final = "PluginError"
_CLAIM_ERROR: Final = "PVCError"
_OURS: Final = (_PLUGIN_ERROR, _CLAIM_ERROR)
_ACTIONS: Final = {action.value: action for action in JobAction}


class Cost(Enum):
    """Whether a restart uses one of the job's `maxRetry` retries."""

    NOTHING = "nothing"
    ALL_BUT_THE_LAST = "a retry, unless this retry would fail the job"
    RETRY = "a retry"


@dataclass(frozen=True, slots=True)
class Order:
    """An action to run on a job, and the event or Command that caused it.

    Attributes
    ----------
    occurrence
        The event that a policy matched, or None for a Command.
    command
        The Command, or None for a policy.
    cost
        Whether a restart uses a retry.
    """

    action: JobAction
    reason: str
    message: str
    occurrence: ObservedEvent | None = None
    command: Manifest | None = None
    cost: Cost = Cost.RETRY


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the job controller.

    `new_keys` generates an SSH key pair for jobs with the plugin ssh; it is None if the plugin is
    disabled. `evictions_are_retries` is true if every restart after an eviction uses a retry, as in
    Volcano.
    """

    new_keys: Callable[[], KeyPair] | None
    evictions_are_retries: bool = False


@dataclass(frozen=True, slots=True)
class JobReconciler:
    """Reconciles jobs."""

    options: Options

    def __call__(self, manifest: Manifest, world: World) -> Effects:
        """Return the effects for the job in the manifest."""
        if is_terminating(manifest):
            return ()
        job, errors = parse_job(manifest)
        if job is None:
            return ()
        problems = [str(error) for error in errors if error.path.startswith("spec")]
        if problems:
            return (
                event_about(
                    JOB, manifest, EventType.WARNING, "JobStatusError", "; ".join(problems)
                ),
            )
        case = _Case(job, manifest, observe_job(job, manifest, world), world)
        effects, order = _next_command(case)
        if order is not None:
            return (*effects, *_start_action(case, order))
        if case.job.status.phase not in LIVING:
            return (*effects, *_remove_pods(case))
        triggered, wait_ms = apply_policies(case.observed)
        if triggered is not None:
            action, occurrence = triggered.action, triggered.occurrence
            order = Order(
                action,
                occurrence.event.value,
                f"{occurrence.what}: {action.value} by policy",
                occurrence,
                cost=_choose_cost(occurrence, self.options),
            )
            return (*effects, *_start_action(case, order))
        deletions = awaited_deletions(case.observed)
        again = () if wait_ms is None else (Again(wait_ms / 1000),)
        if deletions.keys() - case.job.status.deletions.keys():
            # Once the replacement pod exists, nothing else shows that a pod was deleted, so the
            # status stores the deletion first.
            counts = count_pods(case.observed.all_pods, pods_to_delete(case.observed))
            status = replace(case.job.status, deletions=deletions, counts=counts)
            return (*effects, *status_patch(case.job, case.manifest, status), *again)
        return (*effects, *_sync_job(case, self.options.new_keys), *again)


@dataclass(frozen=True, slots=True)
class _Case:
    """The job to reconcile, with the objects that the controller reads."""

    job: Job
    manifest: Manifest
    observed: ObservedJob
    world: World

    def get_class(self, name: str) -> Manifest | None:
        """Return the PriorityClass with this name, or None if it does not exist."""
        return self.world.get(PRIORITY_CLASS, "", name)


# --- Commands ------------------------------------------------------------------------------------


def _next_command(case: _Case) -> tuple[Effects, Order | None]:
    """Return the deletions of ignored Commands, and the first Command that is not ignored."""
    job = case.job
    effects: list[Effect] = []
    for command in commands_for(Ref(JOB, job.meta.namespace, job.meta.name), case.world):
        if uid_of(command) == job.status.last_command or not is_addressed_to(
            command, case.manifest
        ):
            effects.append(delete_object(COMMAND, command))
            continue
        action = _ACTIONS.get(action_of(command))
        answer = NoTransition.IGNORED if action is None else after_action(job.status.phase, action)
        if answer is NoTransition.LATER:
            break
        if action is None or answer is NoTransition.IGNORED:
            named, phase = action_of(command) or "a Command without action", job.status.phase
            message = f"{named} has no effect on a {phase.value} job"
            event = event_about(JOB, case.manifest, EventType.NORMAL, "CommandIgnored", message)
            effects.append(Then((event, delete_object(COMMAND, command))))
            continue
        reason = str(command.get("reason") or "CommandIssued")
        message = str(command.get("message") or f"a Command requests {action.value}")
        return tuple(effects), Order(action, reason, message, command=command)
    return tuple(effects), None


def _choose_cost(occurrence: ObservedEvent, options: Options) -> Cost:
    """Return whether a restart uses one of the job's retries.

    By default, a restart after a pod deletion never uses the last retry.
    """
    if options.evictions_are_retries:
        return Cost.RETRY
    if occurrence.is_disruption:
        return Cost.NOTHING
    return Cost.ALL_BUT_THE_LAST if occurrence.event is JobEvent.POD_EVICTED else Cost.RETRY


# --- actions -------------------------------------------------------------------------------------


def _start_action(case: _Case, order: Order) -> Effects:
    """Write an action to the job's status; later reconciliations execute the action."""
    job, observed = case.job, case.observed
    phase = after_action(job.status.phase, order.action)
    if isinstance(phase, NoTransition):
        return _sync_status(case)
    status = with_phase(job, phase, observed.now_ms)
    restarts = replace(status.restarts, version=status.restarts.version + 1)
    kept: dict[str, PodDeletion] = {}
    if phase is JobPhase.RESTARTING:
        restarts = _record_restart(restarts, order, job.spec.max_retry)
        # Keep the stored deletions of the pods that this action does not restart.
        target, deletions = _find_restart_target(order), job.status.deletions
        kept = {
            key: deletions[key]
            for task in job.spec.tasks
            if deletions
            for index in range(task.replicas)
            if (key := pod_key(task.name, index)) in deletions
            and target not in keys_of_pod(task, index)
        }
    command_uid = "" if order.command is None else uid_of(order.command)
    status = replace(
        status,
        restarts=restarts,
        deletions=kept,
        reason=order.reason,
        message=order.message,
        last_command=command_uid or status.last_command,
    )
    after = with_status(replace(job, status=status), observed)
    status = replace(status, counts=count_pods(after.all_pods, pods_to_delete(after)))
    message = f"Start to execute action {order.action.value}: {order.message}"
    steps = (
        *status_patch(job, case.manifest, status),
        event_about(JOB, case.manifest, EventType.NORMAL, "ExecuteAction", message),
        *(() if order.command is None else (delete_object(COMMAND, order.command),)),
    )
    return (Then(steps),)


def _record_restart(restarts: JobRestarts, order: Order, max_retry: int) -> JobRestarts:
    """Record a restart: set the minimum version of the restarted pods, and count the retry."""
    target, version = _find_restart_target(order), restarts.version
    restarted = {WHOLE: version} if target == WHOLE else {**restarts.restarted, target: version}
    restarts = replace(restarts, restarted=restarted)
    if order.action is JobAction.RESUME_JOB:
        return restarts
    num_retries = restarts.retries + 1
    is_spared = order.cost is Cost.ALL_BUT_THE_LAST and num_retries >= max_retry
    if order.cost is Cost.NOTHING or is_spared:
        return replace(restarts, evictions=restarts.evictions + 1)
    return replace(restarts, retries=num_retries)


def _find_restart_target(order: Order) -> str:
    """Return the `status.restarted` key of the pod, partition, task or job to restart."""
    occurrence, action = order.occurrence, order.action
    task = None if occurrence is None else occurrence.task
    if occurrence is None or task is None:
        return WHOLE
    if action is JobAction.RESTART_POD and occurrence.index >= 0:
        return pod_key(task.name, occurrence.index)
    is_partition = action is JobAction.RESTART_PARTITION and occurrence.index >= 0
    if is_partition and task.partition is not None:
        return partition_key(task.name, occurrence.index // task.partition.size)
    return WHOLE if action is JobAction.RESTART_JOB else task_key(task.name)


# --- deletion of pods ----------------------------------------------------------------------------


def _remove_pods(case: _Case) -> Effects:
    """Delete the pods and the PodGroup that the job's phase does not need; update the status."""
    job, observed = case.job, case.observed
    to_delete = pods_to_delete(observed)
    counts = count_pods(observed.all_pods, to_delete)
    status = job.status
    if status.phase in FINISHED:
        counts = with_deleted_ended_pods(counts, status)
    is_whole = status.restarts.restarted.get(WHOLE) == status.restarts.version
    drops_group = status.phase is not JobPhase.RESTARTING or is_whole
    is_held = drops_group and observed.group is not None
    num_retries = status.restarts.retries
    phase = status.phase if is_held else after_kill(status.phase, job.spec, counts, num_retries)
    status = replace(with_phase(job, phase, observed.now_ms), counts=counts)
    if phase is JobPhase.FAILED is not job.status.phase:
        times = f"failed {num_retries} times, maxRetry is {job.spec.max_retry}"
        message = f"{times}; last failure: {status.message}" if status.message else times
        status = replace(status, reason="MaxRetryReached", message=message)
    deletions = [delete_object(POD, pod.manifest) for pod in to_delete]
    if drops_group and observed.group is not None and not is_terminating(observed.group):
        deletions.append(delete_object(POD_GROUP, observed.group))
    expiry: list[Effect] = []
    ended_ms, ttl_s = job.status.transition_ms, job.spec.ttl_s
    if job.status.phase in FINISHED and ttl_s is not None and ended_ms is not None:
        left_ms = ended_ms + ttl_s * 1000 - observed.now_ms
        deletion = delete_object(JOB, case.manifest, Propagation.FOREGROUND)
        expiry.append(Again(left_ms / 1000) if left_ms > 0 else deletion)
    return (
        *deletions,
        *status_patch(job, case.manifest, status),
        *expiry,
        *_recheck_terminating(case),
    )


def _recheck_terminating(case: _Case) -> Iterator[Again]:
    """Reconcile the job again when a terminating pod must be deleted again; see `LEFT_OVER_MS`."""
    waits = [recheck_delay_ms(pod, case.observed.now_ms) for pod in case.observed.all_pods]
    left_ms = min((wait for wait in waits if wait is not None), default=None)
    if left_ms is not None:
        yield Again(max(left_ms / 1000, LEFT_OVER_S))


# --- creation of pods ----------------------------------------------------------------------------


def _sync_job(case: _Case, new_keys: Callable[[], KeyPair] | None) -> Effects:
    """Reconcile a pending or running job: create its missing objects and delete surplus pods."""
    job, observed, manifest = case.job, case.observed, case.manifest
    effects: list[Effect] = [*sync_owned_objects(job, manifest, case.world, new_keys)]
    if observed.group is None:
        effects.append(Create(POD_GROUP, desired_group(job, manifest, case.get_class)))
    elif changes := group_changes(observed.group, job, manifest, case.get_class):
        effects.append(patch_object(POD_GROUP, observed.group, changes))
    absent = missing_claims(job, case.world)
    if absent:
        effects.append(Again(CLAIM_AGAIN_S))
    if is_admitted(observed.group) and not absent:
        effects += _new_pods(case)
    effects += (delete_object(POD, pod.manifest) for pod in pods_to_delete(observed))
    return (*effects, *_sync_status(case, absent), *_recheck_terminating(case))


def _new_pods(case: _Case) -> Iterator[Effect]:
    """Yield the creations of missing pods, up to a total cost of `MOST_COST`.

    Without this limit, a job with 100 000 pods would delay the reconciliation of other jobs.
    """
    job, observed = case.job, case.observed
    tasks = job.spec.tasks
    incomplete = [task for task in tasks if len(list(observed.pods_of(task))) < task.replicas]
    awaited = {name for task in incomplete if task.depends_on for name in task.depends_on.names}
    started = {task.name: _has_started(task, observed) for task in tasks if task.name in awaited}
    missing = [
        (task, index)
        for task in incomplete
        if _may_start(task, started)
        for index in range(task.replicas)
        if (task.name, index) not in observed.pods
    ]
    if not missing:
        return
    queue = case.world.get(QUEUE, "", job.spec.queue)
    is_forwarded = queue is not None and bool(spec_of(queue).get("extendClusters"))
    maker = pod_maker(job, case.manifest, is_forwarded=is_forwarded)
    cost = 0
    for task, index in missing:
        name = pod_name(job.meta.name, task.name, index)
        if cost >= MOST_COST:
            yield Again(NEXT_PODS_S)
            return
        if case.world.get(POD, job.meta.namespace, name) is None:
            pod = maker.pod(task, index)
            cost += _estimate_cost(pod)
            yield Create(POD, pod)
        else:
            yield Again(LEFT_OVER_S)  # another owner's pod has this name


def _estimate_cost(pod: Manifest) -> int:
    """Return the cost of creating a pod: 100, plus the cost of its environment variables.

    A variable costs 1, plus 1 for each 64 characters of its value.
    """
    spec, total = spec_of(pod), 100
    for container in (*records(spec, "initContainers"), *records(spec, "containers")):
        values = (each.get("value") for each in records(container, "env"))
        total += sum(1 + len(value) // 64 if isinstance(value, str) else 1 for value in values)
    return total


def _may_start(task: TaskSpec, started: Mapping[str, bool]) -> bool:
    """Return whether the tasks on which a task depends have started or succeeded.

    If `dependsOn.iteration` is `any`, one started task is enough. `started` maps the name of each
    known task to whether it has started.
    """
    waits = task.depends_on
    if waits is None:
        return True
    starts = [started[name] for name in waits.names if name in started]
    is_any = waits.iteration is Iteration.ANY and len(waits.names) > 1
    return any(starts) if is_any and starts else all(starts)


def _has_started(task: TaskSpec, observed: ObservedJob) -> bool:
    pods = (pod for pod in observed.pods_of(task) if pod.is_active)
    num_started = sum(
        pod.phase == "Succeeded" or (pod.phase == "Running" and are_containers_ready(pod.manifest))
        for pod in pods
    )
    return num_started >= task.min_available


def _sync_status(case: _Case, absent: Sequence[str] = ()) -> Effects:
    """Return the status patch of a pending or running job, and an event for a new problem."""
    job, observed = case.job, case.observed
    counts = count_pods(observed.all_pods, pods_to_delete(observed))
    phase = job.status.phase
    if not job.status.is_new:
        phase = after_sync(phase, job.spec, counts)
    status = replace(with_phase(job, phase, observed.now_ms), counts=counts)
    reason, message = _explain_state(case, status, absent)
    status = replace(
        status,
        reason=reason,
        message=message,
        min_available=job.spec.min_available,
        controlled=controlled(job),
        deletions=awaited_deletions(observed),
    )
    events: list[Emit] = []
    if message and (reason, message) != (job.status.reason, job.status.message):
        if reason in _OURS:
            events.append(event_about(JOB, case.manifest, EventType.WARNING, reason, message))
        elif phase in LIVING and why_waiting(observed.group)[1]:
            about = f"{job.meta.namespace}:{job.meta.name}"
            text = f"PodGroup {about} unschedule,reason: {message}"
            events.append(
                event_about(JOB, case.manifest, EventType.WARNING, "PodGroupPending", text)
            )
    return (*status_patch(job, case.manifest, status), *events)


def _explain_state(case: _Case, status: JobStatus, absent: Sequence[str]) -> tuple[str, str]:
    """Return the reason and message in a job's state: why the job waits, or its last action."""
    if status.phase is JobPhase.FAILED:
        num_pods = case.job.spec.num_pods
        return "NotEnoughSucceeded", f"{status.counts.succeeded} of {num_pods} pods have succeeded"
    if status.phase is JobPhase.COMPLETED:
        return "", ""
    problems = plugin_problems(case.job)
    if problems:
        return _PLUGIN_ERROR, "; ".join(problems)
    if absent:
        names = ", ".join(absent)
        return _CLAIM_ERROR, f"pvc {names} is not found, the job waits until it exists"
    reason, message = why_waiting(case.observed.group)
    if message or reason:
        return reason, message
    is_over = status.phase is JobPhase.RUNNING or status.reason in _OURS
    return ("", "") if is_over else (status.reason, status.message)


_OWNED = (
    POD,
    POD_GROUP,
    CONFIG_MAP,
    SECRET,
    SERVICE,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
)


SCOPES: Final = dict.fromkeys(
    (CONFIG_MAP, SECRET, SERVICE, NETWORK_POLICY), Scope(label=wellknown.JOB_NAME)
)
"""The scopes of the kinds of plugin objects; only objects with a job label are watched."""


def job_controller(options: Options) -> Controller:
    """Return the job controller; it does not watch Secrets if the plugin `ssh` is disabled."""
    has_keys = options.new_keys is not None
    owned = tuple(kind for kind in _OWNED if has_keys or kind != SECRET)
    return Controller(
        name="job",
        kind=JOB,
        decide=existing(JOB, JobReconciler(options), delete_orphaned_commands),
        wakes={
            **dict.fromkeys(owned, owner_wakes(JOB)),
            COMMAND: command_wakes(JOB),
        },
        indexes=(COMMANDS_OF,),
        reads=(QUEUE, PRIORITY_CLASS),
        scopes={kind: scope for kind, scope in SCOPES.items() if kind in owned},
    )
