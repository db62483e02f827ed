"""The schemas of jobs and of what makes and steers them; names and limits are Volcano's.

Source: staging/src/volcano.sh/apis, batch/v1alpha1/job.go, bus/v1alpha1/commands.go, events.go and
actions.go, flow/v1alpha1/jobflow_types.go and jobtemplate_types.go, config/v1alpha1/types.go. Four
things are ours: the event `JobUnknown` is taken for `Unknown`, a task's `maxRetry` may be -1 (never
give up), `status.evictions` counts restarts that are no retries, and pod templates are kept as they
are, so that a cluster's own fields pass.
"""

from __future__ import annotations

from typing import Final

from optsched.api.schema import (
    NAME_PATTERN,
    Schema,
    boolean,
    count,
    integer,
    listing,
    mapping,
    moment,
    name,
    plain,
    record,
    text,
    texts,
    whole_object,
)
from optsched.api.selectors import label_selector
from optsched.api.topology_schemas import NETWORK_TOPOLOGY

PHASES: Final = (
    "Pending",
    "Aborting",
    "Aborted",
    "Running",
    "Restarting",
    "Completing",
    "Completed",
    "Terminating",
    "Terminated",
    "Failed",
)
EVENTS: Final = (
    "*",
    "PodPending",
    "PodRunning",
    "PodFailed",
    "PodEvicted",
    "Unknown",
    "JobUnknown",
    "TaskCompleted",
    "TaskFailed",
    "OutOfSync",
    "CommandIssued",
    "JobUpdated",
)
ACTIONS: Final = (
    "AbortJob",
    "RestartJob",
    "RestartTask",
    "RestartPod",
    "RestartPartition",
    "TerminateJob",
    "CompleteJob",
    "ResumeJob",
)
FLOW_PHASES: Final = ("Pending", "Running", "Succeed", "Failed", "Terminating")

_LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_MAX_LABEL: Final = 63
_DURATION_PATTERN: Final = r"^[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)([mnuµμ]?s|m|h))+)$"
_MAX_PORT: Final = 65535


def _phase(description: str, phases: tuple[str, ...] = PHASES) -> Schema:
    return text(description, enum=["", *phases])


def _duration(description: str) -> Schema:
    # One that Go cannot read would stop every client that follows jobs.
    return text(description, pattern=_DURATION_PATTERN)


def _percentage(description: str, default: int) -> Schema:
    rules = {"minimum": 0, "maximum": 100, "default": default}
    return {"description": description, "type": "integer", **rules}


def _port(description: str) -> Schema:
    return {"description": description, "type": "integer", "minimum": 0, "maximum": _MAX_PORT}


_POLICY: Final = record(
    "What is done when something happens.",
    action=text("What is done.", enum=list(ACTIONS)),
    event=text("What has to happen; JobUnknown is the same as Unknown.", enum=list(EVENTS)),
    events=listing(
        "What has to happen; one of them is enough.",
        {"type": "string", "enum": list(EVENTS)},
    ),
    exitCode=integer("Exit code of a container, instead of an event; never 0."),
    timeout=_duration("How long the event must have lasted, such as 5m; at once without."),
)

_VOLUME: Final = record(
    "A volume that every container of the job mounts.",
    ("mountPath",),
    mountPath=text("Path in the containers.", minLength=1, pattern="^[^:]+$"),
    volumeClaimName=name("PersistentVolumeClaim that is there already."),
    volumeClaim=plain("Spec of a PersistentVolumeClaim that is made for the job."),
)

_PARTITION: Final = record(
    "Groups of equal size into which the pods of the task are split.",
    ("totalPartitions", "partitionSize"),
    totalPartitions=integer("Number of groups.", minimum=1),
    partitionSize=integer("Number of pods in each group.", minimum=1),
    minPartitions=count("Number of groups that must start together.", default=0),
    networkTopology=NETWORK_TOPOLOGY,
)

_TASK: Final = record(
    "Pods that are alike.",
    name=text(
        "Name of the task; default and its position without.",
        maxLength=_MAX_LABEL,
        pattern=_LABEL_PATTERN,
    ),
    replicas=count("Number of pods."),
    minAvailable=count("Smallest number of pods of the task that may run; all without."),
    template=plain("The pod that is made for each replica."),
    policies=listing("What is done when something happens to the task.", _POLICY),
    topologyPolicy=text(
        "How the pods' CPUs and devices lie on NUMA nodes.",
        enum=["none", "best-effort", "restricted", "single-numa-node"],
    ),
    maxRetry=integer("Restarts of a pod until the task has failed; 3 without, -1 never.")
    | {"minimum": -1},
    dependsOn=record(
        "Tasks that must run or have ended before this one starts.",
        name=texts("Names of the tasks."),
        iteration=text("Whether one of them is enough (any) or not (all).", enum=["any", "all"]),
    ),
    partitionPolicy=_PARTITION,
)

JOB_SPEC: Final = record(
    "What runs, how much of it at once, and what is done when something happens.",
    schedulerName=text("Scheduler that places the pods.", maxLength=_MAX_LABEL),
    minAvailable=count("Smallest number of pods that may run; those of all tasks without."),
    volumes=listing("Volumes that every container mounts.", _VOLUME),
    tasks=listing("The parts of the job.", _TASK) | {"minItems": 1},
    policies=listing("What is done when something happens to the job.", _POLICY),
    plugins=mapping(
        "Plugins of the job by name, with their arguments.",
        {"type": "array", "items": {"type": "string"}},
    ),
    runningEstimate=_duration("How long the job will run by its user's guess, such as 2h."),
    queue=name("Queue from which the job asks.", pattern=NAME_PATTERN, default="default"),
    maxRetry=count("Restarts of the job until it has failed.", default=3),
    ttlSecondsAfterFinished=count("Seconds after its end at which the job is deleted."),
    priorityClassName=name("PriorityClass that gives its priority.", pattern=NAME_PATTERN),
    minSuccess=integer("Number of pods that must end well for the job to be completed.")
    | {"minimum": 1},
    networkTopology=NETWORK_TOPOLOGY,
)

_TASK_COUNTS: Final = mapping(
    "Pods of each task by phase.",
    record(
        "Pods of one task.",
        phase=mapping("Number of pods by phase.", {"type": "integer", "format": "int32"}),
    ),
)

_JOB_STATUS: Final = record(
    "How far the job has come.",
    state=record(
        "Stage of its life.",
        phase=_phase("The stage; empty counts as Pending."),
        reason=text("The cause in one word."),
        message=text("The cause in a sentence for people."),
        lastTransitionTime=moment("Since when."),
    ),
    minAvailable=count("Smallest number of its pods that may run."),
    taskStatusCount=_TASK_COUNTS,
    pending=count("Number of its pods that wait."),
    running=count("Number of its pods that run."),
    succeeded=count("Number of its pods that ended well."),
    failed=count("Number of its pods that failed."),
    terminating=count("Number of its pods that are being deleted."),
    unknown=count("Number of its pods of which nothing is known."),
    version=count("Number of times its pods were ended together."),
    retryCount=count("Number of restarts that count towards maxRetry."),
    evictions=count("Number of restarts after pods were taken away; they are no retries."),
    restarted=mapping(
        "Parts of the job whose pods were given up, with the version since which new ones count.",
        {"type": "integer", "format": "int32"},
    ),
    lastCommand=text("The uid of the last Command that was carried out."),
    runningDuration=_duration("How long it ran, once it has ended."),
    controlledResources=mapping("What was made for the job, by name.", {"type": "string"}),
    conditions=listing(
        "The stages it went through.",
        record(
            "One stage.",
            ("status",),
            status=text("Name of the stage.", enum=list(PHASES)),
            lastTransitionTime=moment("When it was reached."),
        ),
    ),
)

JOB_SCHEMA: Final = whole_object(
    "Pods of one or more tasks that are run to their end.", spec=JOB_SPEC, status=_JOB_STATUS
)

_REFERENCE: Final = record(
    "One job.",
    kind=text("Kind of the object."),
    namespace=text("Its namespace."),
    name=text("Name of the object."),
    uid=text("Uid of the object."),
    apiVersion=text("Its group and version."),
    resourceVersion=text("The version of it that was seen."),
    fieldPath=text("The part of it that is meant."),
)

CRON_JOB_SCHEMA: Final = whole_object(
    "Jobs that are made again and again by a timetable.",
    spec=record(
        "What is made, and when.",
        ("schedule", "jobTemplate"),
        schedule=text("The times, in the notation of cron."),
        timeZone=text("Time zone of the schedule, such as Asia/Shanghai."),
        startingDeadlineSeconds={
            "description": "Seconds by which a job may be late; later ones are left out.",
            "type": "integer",
            "format": "int64",
            "minimum": 0,
        },
        concurrencyPolicy=text(
            "Whether jobs may run beside each other.",
            enum=["Allow", "Forbid", "Replace"],
            default="Allow",
        ),
        suspend=boolean("Whether no more jobs are made for now.", default=False),
        jobTemplate=record(
            "The job that is made.",
            metadata=record(
                "What the job carries.",
                labels=mapping("Labels of the job.", {"type": "string"}),
                annotations=mapping("Its annotations.", {"type": "string"}),
            )
            | {"x-kubernetes-preserve-unknown-fields": True},
            spec=JOB_SPEC,
        ),
        successfulJobsHistoryLimit=count("Number of completed jobs that are kept.", default=3),
        failedJobsHistoryLimit=count("Number of failed jobs that are kept.", default=1),
    ),
    status=record(
        "What was made so far.",
        active=listing("The jobs that have not ended.", _REFERENCE)
        | {"x-kubernetes-list-type": "atomic"},
        lastScheduleTime=moment("Time of the last job that was made."),
        lastSuccessfulTime=moment("When a job was last completed."),
    ),
)

COMMAND_SCHEMA: Final = whole_object(
    "Something that is to be done once to a job or a queue.",
    action=text("What is to be done."),
    target=record(
        "To which object.",
        ("apiVersion", "kind", "name", "uid"),
        apiVersion=text("Its group and version."),
        kind=text("Kind of the object."),
        name=text("Name of the object."),
        uid=text("Uid of the object."),
        controller=boolean("Whether it manages this command."),
        blockOwnerDeletion=boolean("Whether it stays until this command is gone."),
    ),
    reason=text("The cause in one word."),
    message=text("The cause in a sentence for people."),
)

_PROBE: Final = record(
    "What is enough before the jobs waited for are completed; all of it.",
    httpGetList=listing(
        "Requests that must be answered.",
        record(
            "One request.",
            taskName=name("Task whose pods are asked."),
            path=text("Path that is asked for."),
            port=_port("Port that is asked."),
            httpHeader=record(
                "One header of the request.",
                name=text("Name of the object."),
                value=text("Value of the header."),
            ),
        ),
    ),
    tcpSocketList=listing(
        "Ports that must be open.",
        record(
            "One port.",
            ("port",),
            taskName=name("Task whose pods are asked."),
            port=_port("The port itself."),
        ),
    ),
    taskStatusList=listing(
        "Phases that tasks must have reached.",
        record(
            "One task.",
            taskName=name("Name of the object."),
            phase=text("Phase of its pods.", maxLength=_MAX_LABEL),
        ),
    ),
)

_FLOW: Final = record(
    "One job of the flow.",
    ("name",),
    name=text("JobTemplate from which it is made.", minLength=1),
    dependsOn=record(
        "What it waits for.",
        targets=texts("Jobs of the flow that must be completed, or as far as the probe says."),
        probe=_PROBE,
    ),
    patch=record(
        "How it differs from its template.",
        jobSpec=plain("Fields of the job's spec that replace those of the template."),
    ),
)

_FLOW_JOB: Final = record(
    "One job of the flow.",
    name=text("Name of the object."),
    state=_phase("Stage of the job."),
    startTimestamp=moment("When it started."),
    endTimestamp=moment("When it ended."),
    restartCount=count("Number of its restarts."),
    runningHistories=listing(
        "The stages it went through.",
        record(
            "One stage.",
            startTimestamp=moment("When it was reached."),
            endTimestamp=moment("When it was left."),
            state=_phase("Name of the stage."),
        ),
    ),
)

JOB_FLOW_SCHEMA: Final = whole_object(
    "Jobs that follow one another.",
    spec=record(
        "Which jobs, and in which order.",
        flows=listing("The jobs of the flow.", _FLOW),
        jobRetainPolicy=text(
            "Whether the jobs stay once all of them are completed.", enum=["retain", "delete"]
        ),
    ),
    status=record(
        "How far the flow has come.",
        pendingJobs=texts("Jobs that wait."),
        runningJobs=texts("Jobs that run."),
        failedJobs=texts("Jobs that failed."),
        completedJobs=texts("Jobs that are completed."),
        terminatedJobs=texts("Jobs that were terminated or aborted."),
        unKnowJobs=texts("Jobs in any other stage."),
        jobStatusList=listing("The jobs one by one.", _FLOW_JOB),
        conditions=mapping(
            "What is known of the jobs, by name.",
            record(
                "One job.",
                phase=_phase("Stage of the job."),
                createTime=moment("When it was made."),
                runningDuration=_duration("How long it ran."),
                taskStatusCount=_TASK_COUNTS,
            ),
        ),
        state=record("Stage of the flow's life.", phase=_phase("Name of the stage.", FLOW_PHASES)),
    ),
)

JOB_TEMPLATE_SCHEMA: Final = whole_object(
    "A job that flows are made of.",
    spec=JOB_SPEC,
    status=record(
        "What is made of it.", jobDependsOnList=texts("Jobs that were made of the template.")
    ),
)

COLOCATION_CONFIGURATION_SCHEMA: Final = whole_object(
    "How pods share memory with others on their node.",
    spec=record(
        "Which pods, and how.",
        selector=label_selector("Labels of the pods; all conditions hold together."),
        memoryQos=record(
            "Limits of memory, as hundredths of what the pod may have.",
            highRatio=_percentage("Where the kernel begins to hold it back.", 100),
            lowRatio=_percentage("What is taken from it last.", 0),
            minRatio=_percentage("What is never taken from it.", 0),
        ),
    ),
    status=record(
        "What is known of it.",
        conditions=listing(
            "Facts and since when they hold.",
            record(
                "One fact.",
                ("lastTransitionTime", "message", "reason", "status", "type"),
                type=text("What the fact is about."),
                status=text("Whether it holds.", enum=["True", "False", "Unknown"]),
                observedGeneration={
                    "description": "Generation of the object in which it was found.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                lastTransitionTime=moment("When it was found."),
                reason=text("The cause in one word."),
                message=text("The cause in a sentence for people."),
            ),
        )
        | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
)
