"""Requests to a scheduler extender and its replies, in Volcano's protocol.

Source: Volcano `pkg/scheduler/plugins/extender/argument.go`. The Go types of Volcano's scheduler
have no JSON tags, so the JSON fields have the names of the Go fields.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.amounts import total
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.annotations import time_text
from optsched.formats.codec.pods.writer import pod_manifest
from optsched.formats.snapshots.writer import node_manifest, owner_fields
from optsched.plugins.custom.extender import Verb
from optsched.units import CPU, MEMORY, PODS, format_resource_list
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optsched.cluster.snapshot import Gang, Node, Queue, Snapshot
    from optsched.cluster.task import Task
    from optsched.plugins.custom.extender import Question

Body = dict[str, Any]

_STATUS: Final = {
    TaskStatus.PENDING: 1,
    TaskStatus.GATED: 1,
    TaskStatus.BOUND: 16,
    TaskStatus.RUNNING: 32,
    TaskStatus.RELEASING: 64,
    TaskStatus.SUCCEEDED: 128,
    TaskStatus.FAILED: 256,
}
"""Volcano's numeric code of each task status (`pkg/scheduler/api/types.go`), a single bit."""

READY, NOT_READY = 1, 2

MOST_WORDS: Final = 1000
"""Maximum number of characters of an extender's message in optsched's reports."""


# --- requests -------------------------------------------------------------------------------------


def request_body(question: Question, snapshot: Snapshot) -> Body:
    """Return the request body for a verb other than PREDICATE."""
    if question.verb in (Verb.PREEMPTABLE, Verb.RECLAIMABLE) and question.task is not None:
        evictees = [task_info(task, snapshot) for task in question.victims]
        return {"evictor": task_info(question.task, snapshot), "evictees": evictees}
    if question.verb is Verb.PRIORITIZE and question.task is not None:
        nodes = [node_info(node) for node in question.nodes]
        return {"task": task_info(question.task, snapshot), "nodes": nodes}
    if question.queue is not None:
        return {"queue": queue_info(question.queue, snapshot)}
    if question.gang is not None:
        return {"job": {**job_info(question.gang, snapshot), "Placed": question.placed}}
    return {} if question.task is None else {"task": task_info(question.task, snapshot)}


def predicate_body(task: Body, node: Body, nodes: Iterable[Body] = ()) -> Body:
    """Return the PREDICATE request for a task and a node; a reply may cover all `nodes`."""
    more = list(nodes)
    return {"task": task, "node": node, **({"nodes": more} if more else {})}


def session_body(snapshot: Snapshot) -> Body:
    """Return the request that starts a session; the request describes the whole cluster."""
    return {
        "Jobs": {gang.key: job_info(gang, snapshot) for gang in snapshot.gangs},
        "Nodes": {node.name: node_info(node) for node in snapshot.nodes},
        "Queues": {queue.name: queue_info(queue, snapshot) for queue in snapshot.queues},
        "NamespaceInfo": {name: {"Name": name} for name in snapshot.namespaces},
        "RevocableNodes": {},
        "NodeList": [node.name for node in snapshot.nodes],
    }


def task_info(task: Task, snapshot: Snapshot) -> Body:
    """Format a task and its pod as `api.TaskInfo`."""
    return {**_plain_task(task), "Pod": pod_manifest(task, snapshot.gang_by_key.get(task.gang))}


def _plain_task(task: Task) -> Body:
    return {
        "UID": task.uid,
        "Job": task.gang,
        "Name": task.name,
        "Namespace": task.namespace,
        "TaskRole": task.role,
        "Resreq": _resource(task.shape.request),
        "InitResreq": _resource(task.shape.request),
        "NodeName": task.node,
        "Status": _STATUS[task.status],
        "Priority": task.priority,
        "Preemptable": task.preemptable,
        "BestEffort": task.shape.is_best_effort,
        "SchGated": task.status is TaskStatus.GATED,
    }


def node_info(node: Node) -> Body:
    """Format a node and its tasks as `api.NodeInfo`."""
    offers = {name: amount for name, amount in node.allocatable if name != PODS}
    used = total(t.shape.request for t in node.residents)
    releasing = (t.shape.request for t in node.residents if t.status is TaskStatus.RELEASING)
    idle = {name: max(amount - used.get(name, 0), 0) for name, amount in offers.items()}
    return {
        "Name": node.name,
        "Node": node_manifest(node),
        "State": {"Phase": READY if node.ready else NOT_READY, "Reason": ""},
        "Releasing": _resource(total(releasing).items()),
        "Pipelined": _resource(()),
        "Idle": _resource(idle.items()),
        "Used": _resource(used.items()),
        "Allocatable": _resource(offers.items()),
        "Capacity": _resource(offers.items()),
        "Tasks": {task.key: _plain_task(task) for task in node.residents},
    }


def job_info(gang: Gang, snapshot: Snapshot) -> Body:
    """Format a gang, its tasks and its PodGroup as `api.JobInfo`."""
    standing = (t.shape.request for t in gang.tasks if t.status.is_standing)
    return {
        "UID": gang.key,
        "PgUID": gang.uid,
        "Name": gang.name,
        "Namespace": gang.namespace,
        "Queue": gang.queue,
        "Priority": gang.priority,
        "MinAvailable": gang.min_member,
        "Tasks": {task.uid or task.key: _plain_task(task) for task in gang.tasks},
        "TaskMinAvailable": dict(gang.min_role),
        "TaskMinAvailableTotal": sum(number for _, number in gang.min_role),
        "Allocated": _resource(total(standing).items()),
        "TotalRequest": _resource(total(t.shape.request for t in gang.tasks).items()),
        "CreationTimestamp": time_text(gang.created_ms),
        "PodGroup": {
            "name": gang.name,
            "namespace": gang.namespace,
            "uid": gang.uid,
            "annotations": dict(gang.annotations),
            "creationTimestamp": time_text(gang.created_ms),
            "ownerReferences": owner_fields(gang.owner) or [],
            "Spec": {
                "MinMember": gang.min_member,
                "MinTaskMember": dict(gang.min_role),
                "Queue": gang.queue,
                "MinResources": format_resource_list(dict(gang.min_resources)),
            },
            "Status": {"Phase": gang.phase.value},
            "Version": "v1beta1",
        },
    }


def queue_info(queue: Queue, snapshot: Snapshot) -> Body:
    """Format a queue as `api.QueueInfo`; its usage excludes the tasks of child queues."""
    held = total(
        task.shape.request
        for gang in snapshot.gangs
        if gang.queue == queue.name
        for task in gang.tasks
        if task.status.is_standing
    )
    return {
        "UID": queue.name,
        "Name": queue.name,
        "Parent": queue.parent,
        "Weight": queue.weight,
        "Priority": queue.priority,
        "Capability": format_resource_list(dict(queue.capability or ())),
        "Guarantee": {"Resource": format_resource_list(dict(queue.guarantee))},
        "Deserved": format_resource_list(dict(queue.deserved)),
        "ReclaimableFlag": queue.reclaimable,
        "State": queue.state.value,
        "Allocated": format_resource_list(held),
        "Annotations": dict(queue.annotations),
        "CreationTimestamp": time_text(queue.created_ms),
    }


def _resource(amounts: Iterable[tuple[str, int]]) -> Body:
    """Format amounts in base units as `api.Resource`, which counts scalars in thousandths."""
    found = dict(amounts)
    scalars = {n: a * 1000 for n, a in found.items() if n not in (CPU, MEMORY, PODS)}
    return {
        "MilliCPU": found.get(CPU, 0),
        "Memory": found.get(MEMORY, 0),
        "ScalarResources": scalars,
        "MaxTaskNum": 0,
    }


# --- replies --------------------------------------------------------------------------------------


def read_reply(verb: Verb, raw: bytes) -> Mapping[str, object]:
    """Parse an extender's reply into fields of `Reply`; raise ValueError if the reply is invalid.

    Replies to PREDICATE are parsed by `read_refusals` instead.
    """
    found = _object(raw)
    match verb:
        case Verb.PRIORITIZE:
            if found.get("errorMessage"):
                raise ValueError(f"returned the error {_short(str(found['errorMessage']))}")
            return {"scores": _scores(found.get("nodeScore"))}
        case Verb.PREEMPTABLE | Verb.RECLAIMABLE:
            status, victims = _vote(found), found.get("victims")
            victims = [] if victims is None else victims
            if not isinstance(victims, list) or not all(isinstance(v, dict) for v in victims):
                raise ValueError("returned victims that are not tasks")
            keys = sorted(f"{v.get('Namespace', '')}/{v.get('Name', '')}" for v in victims)
            return {"status": status, "victims": keys}
        case Verb.JOB_ENQUEUEABLE:
            return {"status": _vote(found)}
        case Verb.JOB_READY:
            return {"status": _flag(found, "status")}
        case Verb.QUEUE_OVERUSED:
            return {"overused": _flag(found, "overused")}
        case _:
            return {}


def read_refusals(raw: bytes, node: str) -> tuple[dict[str, str], bool]:
    """Return the rejected nodes with reasons, and whether the reply covers all requested nodes.

    In Volcano's protocol, a reply covers one node; its field `errorMessage`, or `status` in newer
    versions, holds the reason.
    """
    found = _object(raw)
    if isinstance(found.get("nodeErrors"), dict):
        return {str(k): _short(str(v)) for k, v in found["nodeErrors"].items() if v}, True
    message = found.get("errorMessage") or found.get("status") or ""
    if not isinstance(message, str):
        raise ValueError("returned an errorMessage that is not a string")
    return ({node: _short(message)} if message else {}), False


def _short(message: str) -> str:
    plain = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    return plain if len(plain) <= MOST_WORDS else f"{plain[: MOST_WORDS - 1]}…"


def _object(raw: bytes) -> Body:
    try:
        found = json.loads(raw)
    except ValueError as e:
        raise ValueError(f"returned text that is not JSON: {why_unreadable(e)}") from e
    except RecursionError as e:
        raise ValueError("returned JSON that is nested too deeply") from e
    if not isinstance(found, dict):
        raise ValueError("returned JSON that is not an object")
    return found


_MOST_SCORE = 1e300
"""The largest accepted score.

Larger scores are rejected, because a JSON number may exceed the largest float.
"""


def _scores(found: object) -> dict[str, float]:
    if found is None:
        return {}
    numbers = found.items() if isinstance(found, dict) else None
    if numbers is None or not all(
        isinstance(v, int | float) and not isinstance(v, bool) and abs(v) <= _MOST_SCORE
        for _, v in numbers
    ):
        raise ValueError("returned a nodeScore that does not map nodes to numbers")
    return {str(node): float(score) for node, score in numbers}


def _vote(found: Body) -> int:
    status = found.get("status", 0)
    if isinstance(status, bool) or not isinstance(status, int):
        raise ValueError("returned a status that is not a whole number")
    return status


def _flag(found: Body, name: str) -> bool:
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"returned a value other than true and false in {name}")
    return value
