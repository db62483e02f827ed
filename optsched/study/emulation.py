"""An emulated in-memory cluster, and the gang scheduling experiment.

The emulated cluster stores Kubernetes objects, schedules the pods in sessions, and starts bound
pods immediately. The clock of the emulated cluster advances only when `advance` is called.

The experiment runs jobs with and without gang scheduling. Each job has 2 parameter servers with 1
CPU and 4 workers with 2 CPUs, 10 CPUs in total. A job makes progress only while all of its six
tasks run. On 4 nodes with 4 CPUs each, one job fits at a time. Slides of the projects kube-batch
and Volcano (2019) report this experiment for 1, 2 and 5 jobs: without gang scheduling, several jobs
deadlock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from optsched.cluster.decisions import Allocate
from optsched.formats.codec.annotations import time_text
from optsched.formats.snapshots.assembly import assemble
from optsched.plugins.shares.tree_shares import find_half_life
from optsched.session.session import run_session
from optsched.session.usage import UsageKeeper

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.decisions import Plan
    from optsched.formats.codec.pods.reader import DecodeOptions
    from optsched.policy.policy import Policy
    from optsched.problem.problem import Problem
    from optsched.session.session import SessionContext


COMPLETE_ANNOTATION = "optsched.io/complete"


class EmulatedCluster:
    """An in-memory cluster of Kubernetes objects, in which sessions schedule the pods.

    `now_ms` is the current cluster time in milliseconds. `last_plan` is the plan of the last
    session, or None before the first session.
    """

    def __init__(
        self,
        policy: Policy,
        context: SessionContext,
        options: DecodeOptions | None = None,
    ) -> None:
        self.now_ms = 0
        self.last_plan: Plan | None = None
        self._policy = policy
        self._context = context
        self._options = options
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._problem: Problem | None = None
        self._usage = UsageKeeper()

    def apply(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Create objects, or replace existing objects with the same kind and key."""
        for manifest in manifests:
            obj = {**manifest, "metadata": {**manifest["metadata"]}}
            obj["metadata"].setdefault("creationTimestamp", time_text(self.now_ms))
            name, space = obj["metadata"]["name"], obj["metadata"].get("namespace")
            self._objects[obj["kind"], name if space is None else f"{space}/{name}"] = obj

    def delete(self, kind: str, key: str) -> None:
        """Delete an object; do nothing if the object does not exist."""
        self._objects.pop((kind, key), None)

    def objects(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of one kind, sorted by key."""
        for found, key in sorted(self._objects):
            if found == kind:
                yield self._objects[found, key]

    def annotate(self, kind: str, key: str, annotations: Mapping[str, str]) -> None:
        """Add annotations to an object."""
        meta = self._objects[kind, key]["metadata"]
        meta["annotations"] = {**meta.get("annotations", {}), **annotations}

    def advance(self, milliseconds: int) -> None:
        """Advance the clock, finish pods annotated as complete, run a session and bind its pods.

        Bound pods run immediately.
        """
        self.now_ms += milliseconds
        for pod in self.objects("Pod"):
            is_running = pod.get("status", {}).get("phase") == "Running"
            if is_running and COMPLETE_ANNOTATION in pod["metadata"].get("annotations", {}):
                pod["status"] = {"phase": "Succeeded"}
        snapshot = assemble(self._objects.values(), self._options, self.now_ms).snapshot
        report = run_session(
            self._usage.noted(snapshot, find_half_life(self._policy.rules)),
            self._policy,
            self._context,
            self._problem,
        )
        self._problem, self.last_plan = report.problem, report.plan
        for action in report.plan.actions:
            if isinstance(action, Allocate):
                pod = self._objects["Pod", action.task]
                pod["spec"] = {**pod["spec"], "nodeName": action.node}
                pod["status"] = {"phase": "Running"}


NAMESPACE = "gang-experiment"
ROLES = (("ps", 2, 1), ("worker", 4, 2))
TASKS = sum(number for _, number, _ in ROLES)
JOB_LABEL = "job"
ROLE_LABEL = "volcano.sh/task-spec"
SCHEDULER = "optsched"

PATIENCE = 10
"""Factor by which the deadlock timeout `quiet_seconds` is multiplied while a CPU is idle."""


class Stage(Protocol):
    """The cluster on which the experiment runs."""

    def apply(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Create objects."""

    def pods(self) -> Iterable[Mapping[str, Any]]:
        """Return the experiment's pods."""

    def complete(self, names: Sequence[str]) -> None:
        """Make the named pods succeed."""

    def clear(self) -> None:
        """Delete the experiment's pods and PodGroups, and wait until they are deleted."""

    def advance(self) -> float:
        """Advance the cluster's clock by one step; return a monotonic time in seconds."""


@dataclass(frozen=True, slots=True)
class JobState:
    """The numbers of running tasks, succeeded tasks and allocated CPUs of a job."""

    running: int = 0
    succeeded: int = 0
    cpus: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all tasks have succeeded."""
        return self.succeeded == TASKS


@dataclass(frozen=True)
class Progress:
    """The state of the experiment at one instant."""

    seconds: float  # Seconds since the jobs were created.
    jobs: Mapping[str, JobState]  # State of each job, keyed by name.
    # Completion time of each completed job, in seconds since the jobs were created.
    finished_at: Mapping[str, float] = field(default_factory=dict)
    # True if the jobs are deadlocked: no job has all of its tasks running, and the state of every
    # job has been unchanged for a long time.
    is_stuck: bool = False

    def deadlock(self, num_cpus: int) -> str:
        """Return a message that states how many jobs are deadlocked and how many CPUs they hold."""
        holding = [job for job in self.jobs.values() if job.running]
        held = sum(job.cpus for job in holding)
        cpus = f"{held}/{num_cpus} CPU"
        return f"deadlock: {len(holding)} jobs hold {cpus}, but no job runs all {TASKS} pods"


def job_manifests(jobs: Sequence[str], min_member: int) -> list[dict[str, Any]]:
    """Return one PodGroup per job, followed by the pods of all jobs in interleaved order.

    Controllers that create pods in parallel produce a similar order.
    """
    groups: list[dict[str, Any]] = [
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": job, "namespace": NAMESPACE},
            "spec": {"minMember": min_member, "queue": "default"},
        }
        for job in jobs
    ]
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{job}-{role}-{index}",
                "namespace": NAMESPACE,
                "labels": {JOB_LABEL: job, ROLE_LABEL: role},
                "annotations": {"scheduling.k8s.io/group-name": job},
            },
            "spec": {
                "schedulerName": SCHEDULER,
                "restartPolicy": "Never",
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": role,
                        "image": "tf",
                        "resources": {"requests": {"cpu": str(cpus), "memory": "1Gi"}},
                    }
                ],
            },
        }
        for role, number, cpus in ROLES
        for index in range(number)
        for job in jobs
    ]
    return [*groups, *pods]


def play(
    stage: Stage,
    num_jobs: int,
    min_member: int,
    num_cpus: int,
    run_seconds: float,
    quiet_seconds: float,
) -> Iterator[Progress]:
    """Run the experiment once and yield its progress after every step.

    Parameters
    ----------
    stage
        The cluster, which is cleared first.
    num_jobs
        Number of jobs created together.
    min_member
        Minimum number of a job's tasks that start together: 6 makes a job a gang, and 1 lets its
        tasks start independently.
    num_cpus
        Total number of CPUs in the cluster.
    run_seconds
        Time for which all tasks of a job must run before it completes.
    quiet_seconds
        Time without any change after which jobs that hold all CPUs are reported as stuck.

    """
    jobs = [f"tf{i}" for i in range(num_jobs)]
    stage.clear()
    stage.apply(job_manifests(jobs, min_member))
    start = changed = stage.advance()
    complete_since: dict[str, float] = {}
    finished: dict[str, float] = {}
    last: Mapping[str, JobState] = {}
    while True:
        now = stage.advance()
        running, succeeded = Counter[str](), Counter[str]()
        cpus, cpus_of = Counter[str](), {role: each for role, _, each in ROLES}
        names: dict[str, list[str]] = {job: [] for job in jobs}
        for pod in stage.pods():
            labels = pod["metadata"]["labels"]
            job, role = labels[JOB_LABEL], labels[ROLE_LABEL]
            phase = pod.get("status", {}).get("phase")
            running[job] += phase == "Running"
            cpus[job] += cpus_of[role] if phase == "Running" else 0
            succeeded[job] += phase == "Succeeded"
            names[job].append(pod["metadata"]["name"])
        states = {job: JobState(running[job], succeeded[job], cpus[job]) for job in jobs}
        if states != last:
            last, changed = states, now
        for job, state in states.items():
            if state.running == TASKS:
                since = complete_since.setdefault(job, now)
                if now - since >= run_seconds:
                    stage.complete(names[job])
            if state.is_complete:
                finished.setdefault(job, now - start)
        works = any(state.running == TASKS for state in states.values())
        # While a CPU is idle, the scheduler may just be slow, so the deadlock timeout is longer.
        is_full = sum(state.cpus for state in states.values()) >= num_cpus
        patience_s = quiet_seconds if is_full else PATIENCE * quiet_seconds
        are_complete = all(state.is_complete for state in states.values())
        is_stuck = not works and not are_complete and now - changed >= patience_s
        yield Progress(now - start, states, dict(finished), is_stuck=is_stuck)
        if is_stuck or are_complete:
            return
