"""Validation of job specs (pkg/webhooks/admission/jobs/validate)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission import names
from optsched.admission.findings import MAX_TASKS, get_mapping
from optsched.admission.pod_templates import check_template, containers_of
from optsched.api.crds import job_spec_schema
from optsched.api.fields import Fields
from optsched.api.job import JobAction, JobEvent, NumaPolicy, read_job_spec
from optsched.api.kinds import PRIORITY_CLASS
from optsched.units import CPU, QuantityError, parse_quantity_field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.admission.findings import Findings, Review
    from optsched.admission.review import Raw
    from optsched.api.job import JobSpec, JobVolume, LifecyclePolicy, TaskSpec
    from optsched.api.podgroup import NetworkTopology
    from optsched.units import FieldError


_NANOS_PER_UNIT: Final = 10**9
_TWO_TIERS: Final = (
    "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"
)
_TIER_ERROR: Final = ".highestTierName"
_NOT_DAG: Final = (
    "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG)"
)
_CONFLICT: Final = (
    "If you want to use an existing PVC, just specify VolumeClaimName."
    "If you want to create a new PVC, you do not need to specify VolumeClaimName"
)


def check_job_spec(raw: Raw, name: str, review: Review, path: str = "spec") -> JobSpec:
    """Return the spec of a new job; report all errors in the spec, except errors about the queue.

    `name` is the job's name. `path` is the spec's path in messages.
    """
    errors: list[FieldError] = []
    tasks = raw.get("tasks")
    if isinstance(tasks, list):
        review.check_count(f"{path}.tasks", len(tasks), MAX_TASKS)
    spec = read_job_spec(Fields(raw, job_spec_schema(), path, errors))
    review.errors(error for error in errors if not error.path.endswith(_TIER_ERROR))
    if not spec.tasks and not review.has_problem_with(f"{path}.tasks"):
        review.deny(f"No task specified in job spec: {path}.tasks; write at least one")
    if not names.is_qualified(name) or "/" in name:
        review.deny(
            f"create job with name {name} validate failed: metadata.name; {names.JOB_NAME_RULE}"
        )
    seen: set[str] = set()
    for index, task in enumerate(spec.tasks):
        if task.name in seen:
            review.deny(
                f"duplicated task name {task.name}: {path}.tasks[{index}].name; "
                "give each task a unique name"
            )
        seen.add(task.name)
    for index, task in enumerate(spec.tasks):
        _check_task(task, name, f"{path}.tasks[{index}]", review)
    check_totals(spec, path, review)
    _check_order(spec, path, review)
    check_policies(spec.policies, f"{path}.policies", review)
    check_topology(spec.topology, f"{path}.networkTopology", review)
    for plugin in sorted(spec.plugins.keys() - review.settings.job_plugins):
        plugin_names = ", ".join(sorted(review.settings.job_plugins))
        review.deny(
            f"unable to find job plugin: {plugin}: {path}.plugins; known plugins: {plugin_names}"
        )
    if "mpi" in spec.plugins:
        # As in Volcano, a missing worker task only causes a warning.
        task_names = [task.name for task in spec.tasks]
        for role, report in (("master", review.deny), ("worker", review.warn)):
            wanted = _read_argument(spec.plugins["mpi"], role, role)
            if wanted not in task_names:
                report(
                    f"The specified mpi {role} task was not found: {path}.plugins[mpi] looks for a "
                    f"task {wanted}; tasks are {', '.join(task_names)}; name one with --{role}"
                )
    _check_volumes(spec.volumes, f"{path}.volumes", review)
    priority_class = spec.priority_class
    if priority_class and not review.world.has_priority_class(priority_class):
        review.warn(
            f"{path}.priorityClassName: there is no {PRIORITY_CLASS.kind} {priority_class}; "
            "pods cannot be created until it exists"
        )
    return spec


def check_totals(spec: JobSpec, path: str, findings: Findings) -> None:
    """Deny a job whose `minAvailable` exceeds its number of pods."""
    if spec.min_available > spec.num_pods:
        findings.deny(
            f"job 'minAvailable' should not be greater than total replicas in tasks: "
            f"{path}.minAvailable is {spec.min_available}, the tasks have {spec.num_pods}"
        )


def check_task_minimum(task: TaskSpec, job: str, path: str, findings: Findings) -> None:
    """Deny a task whose `minAvailable` exceeds its replicas."""
    if task.min_available > task.replicas:
        findings.deny(
            f"'minAvailable' is greater than 'replicas' in task: {task.name}, job: {job}: "
            f"{path}.minAvailable is {task.min_available}, write at most {task.replicas}"
        )


def _check_task(task: TaskSpec, job: str, path: str, review: Review) -> None:
    check_task_minimum(task, job, path, review)
    if not names.is_label(task.name):
        review.invalid(f"{path}.name", task.name, names.LABEL_RULE)
    check_policies(task.policies, f"{path}.policies", review)
    pod = f"{job}-{task.name}-{max(task.replicas - 1, 0)}"
    if len(pod) > names.MAX_LABEL:
        review.deny(
            f"create pod with name {pod} validate failed: it has {len(pod)} characters; "
            f"shorten metadata.name or {path}.name until it has {names.MAX_LABEL}"
        )
    if task.partition is not None:
        partition, field = task.partition, f"{path}.partitionPolicy"
        product = partition.total * partition.size
        if product != task.replicas and not review.has_problem_with(f"{field}."):
            review.deny(
                f"{field}: totalPartitions {partition.total} times partitionSize {partition.size} "
                f"is {product}: it must be {task.replicas}, the replicas of task {task.name}"
            )
        minimum = partition.min_partitions * partition.size
        if partition.min_partitions and task.min_available != minimum:
            review.deny(
                f"{path}.minAvailable: is {task.min_available}: write {minimum}, which is "
                f"minPartitions {partition.min_partitions} times partitionSize {partition.size}"
            )
        check_topology(partition.topology, f"{field}.networkTopology", review)
    check_template(task.template, f"{path}.template", review)
    if task.topology_policy is not NumaPolicy.NONE:
        for field, container in containers_of(task.template):
            resources = get_mapping(container, "resources")
            quantities = get_mapping(resources, "requests") or get_mapping(resources, "limits")
            cpu_request = quantities.get(CPU)
            try:
                nanos = parse_quantity_field(cpu_request).nanos
            except QuantityError:
                nanos = 0
            if nanos <= 0 or nanos % _NANOS_PER_UNIT:
                review.deny(
                    f"the cpu request isn't  an integer in {path}.template.spec.{field}: it is "
                    f"{cpu_request or 'none'}; {path}.topologyPolicy "
                    f"{task.topology_policy.value} needs whole CPUs, such as 2"
                )


def check_topology(
    topology: NetworkTopology | None, path: str, findings: Findings, prefix: str = ""
) -> None:
    """Deny a network topology that states its highest tier both by number and by name.

    The message starts with `prefix`.
    """
    if topology and topology.highest_tier is not None and topology.highest_tier_name:
        findings.deny(
            f"{prefix}{_TWO_TIERS}: {path} has {topology.highest_tier} and "
            f"{topology.highest_tier_name}; keep one of them"
        )


def _check_order(spec: JobSpec, path: str, findings: Findings) -> None:
    task_names = {task.name for task in spec.tasks}
    waits = {task.name: task.depends_on.names for task in spec.tasks if task.depends_on}
    for index, task in enumerate(spec.tasks):
        for missing in (name for name in waits.get(task.name, ()) if name not in task_names):
            findings.deny(
                f"{_NOT_DAG}: {path}.tasks[{index}].dependsOn.name names {missing}; "
                f"tasks are {', '.join(sorted(task_names))}"
            )
    cycle = find_cycle(waits)
    if cycle:
        findings.deny(
            f"{_NOT_DAG}: {path}.tasks: {' waits for '.join(cycle)}; remove one dependsOn"
        )


def _read_argument(arguments: tuple[str, ...], flag: str, default: str) -> str:
    """Return the value of a flag in a plugin's arguments, parsed as Go's flag package does."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.lstrip("-").partition("=")
        if name == flag and argument.startswith("-"):
            following = arguments[position + 1 : position + 2]
            return value if equals else "".join(following)
    return default


def _check_volumes(volumes: tuple[JobVolume, ...], path: str, findings: Findings) -> None:
    seen: set[str] = set()
    for position, volume in enumerate(volumes):
        field, target = f"{path}[{position}]", volume.mount_path
        if not target:
            findings.deny(f"mountPath is required: {field}.mountPath; write the path to mount at")
        elif target in seen:
            findings.deny(f"duplicated mountPath: {target}: {field}.mountPath; use it once")
        seen.add(target)
        if volume.claim is None and not volume.claim_name:
            findings.deny(
                f"either VolumeClaim or VolumeClaimName must be specified: {field} has neither; "
                "write one"
            )
        elif volume.claim is not None and volume.claim_name:
            findings.deny(
                f"conflict: {_CONFLICT}: {field} has a volumeClaim and the name "
                f"{volume.claim_name}; keep one of them"
            )
        elif volume.claim_name and not names.is_subdomain(volume.claim_name):
            findings.deny(
                f"invalid VolumeClaimName {volume.claim_name}: {field}.volumeClaimName; "
                f"{names.SUBDOMAIN_RULE}"
            )


_INTERNAL: Final = frozenset({JobEvent.POD_RUNNING, JobEvent.OUT_OF_SYNC, JobEvent.COMMAND_ISSUED})
EVENTS: Final = tuple(event for event in JobEvent if event not in _INTERNAL)


def check_policies(policies: Sequence[LifecyclePolicy], path: str, findings: Findings) -> None:
    """Report invalid policies of a job or task; `path` is the path of the policy list."""
    seen_events: set[JobEvent] = set()
    seen_codes: set[int] = set()
    for position, policy in enumerate(policies):
        field = f"{path}[{position}]"
        if policy.events and policy.exit_code is not None:
            findings.deny(
                f"must not specify event and exitCode simultaneously: {field} has "
                f"{', '.join(policy.events)} and {policy.exit_code}; keep one of them"
            )
        elif policy.events:
            for event in policy.events:
                if event in _INTERNAL:
                    sentence = f"invalid policy event: write one of {', '.join(EVENTS)}"
                    findings.invalid(f"{field}.event", event.value, sentence)
                elif event in seen_events:
                    findings.deny(
                        f"duplicate event {event.value}  across different policy: {field}; "
                        "name it in one policy only"
                    )
                seen_events.add(event)
        elif policy.exit_code is not None:
            if policy.exit_code == 0:
                findings.deny(
                    f"0 is not a valid error code: {field}.exitCode; write the code of a failure, "
                    "such as 1"
                )
            elif policy.exit_code in seen_codes:
                findings.deny(
                    f"duplicate exitCode {policy.exit_code}: {field}.exitCode; "
                    "name it in one policy only"
                )
            seen_codes.add(policy.exit_code)
        elif not findings.has_problem_with(f"{field}.e"):
            findings.deny(
                f"either event and exitCode should be specified: {field} has neither; write one"
            )
        if policy.action is None and not findings.has_problem_with(f"{field}.action"):
            findings.required(f"{field}.action", f"write one of {', '.join(JobAction)}")
    if JobEvent.ANY in seen_events and len(seen_events) > 1:
        named = ", ".join(event for policy in policies for event in policy.events)
        findings.deny(
            f"if there's * here, no other policy should be here: {path} names {named}; "
            "keep * or the others"
        )


def find_cycle(waits_for: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the names on a dependency cycle, which ends with its first name; empty without cycles.

    The search takes linear time. Names without dependencies may be missing from `waits_for`.
    """
    done: set[str] = set()
    for start in waits_for:
        if start in done:
            continue
        position = {start: 0}
        ahead = [iter(waits_for[start])]
        while ahead:
            name = next(ahead[-1], None)
            if name is None:
                ahead.pop()
                done.add(position.popitem()[0])
            elif name in position:
                path = list(position)[position[name] :]
                return (*path, name)
            elif name not in done:
                position[name] = len(ahead)
                ahead.append(iter(waits_for.get(name, ())))
    return ()
