"""Reader and writer of plan files (`plan.json`, described in docs/plan.md).

The reader validates against the schema in `deploy/schemas/plan.v1alpha1.json`.
"""

from __future__ import annotations

import importlib.resources
import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from optsched.api.fields import Fields, record
from optsched.cluster.decisions import (
    Allocate,
    Certificate,
    Enqueue,
    Evict,
    LevelResult,
    LevelStatus,
    Nominate,
    Plan,
    QueueShare,
    Sense,
)
from optsched.cluster.dra_devices import DeviceGrant, DeviceId
from optsched.cluster.node_resources import GpuShare, NumaPart
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.formats.codec.annotations import API_VERSION
from optsched.units import FieldError
from optsched.units.input_errors import why_unreadable
from optsched.units.plaintext import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from optsched.api.fields import Schema
    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot

KIND: Final = "Plan"

_KEY: Final = re.compile(r"[^/]+/[^/]+")
_NOT_A_KEY: Final = "is not the key of a pod or PodGroup: write namespace/name"
_NOT_SECONDS: Final = "is not a number of seconds: write 0 or more"
_NOT_PROVED: Final = "contradicts the levels: write {} for these levels"
_NO_POD: Final = "is not a pending pod of this snapshot"
_NO_VICTIM: Final = "is not a running pod of this snapshot"


@cache
def published_schema(kind: str) -> Schema:
    """Return the JSON schema in `deploy/schemas` for files of a kind, such as Plan."""
    folder = importlib.resources.files("optsched.deploy") / "schemas"
    found: Schema = json.loads((folder / f"{kind.lower()}.v1alpha1.json").read_text("utf-8"))
    return found


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod to evict, the action that evicts it, and the gang or plugin for which it is evicted.

    `to` is the node on which the pod restarts, or an empty string if it does not restart.
    """

    pod: str
    action: str
    preemptor: str
    to: str = ""
    plugin: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """The content of a plan file, keyed by pod and gang; the order of actions is not recorded.

    Attributes
    ----------
    enqueued
        Keys of the gangs to enqueue, sorted.
    binds, nominations
        Node name, keyed by pod.
    shared_gpus, devices, numa
        GPU shares, claimed devices and NUMA cells of bound pods, keyed by pod.
    evictions
        The pods to evict, sorted by pod key.
    pending, pending_pods
        The reason why a gang or a pod waits, keyed by gang or pod.

    """

    certificate: Certificate
    binds: Mapping[str, str] = field(default_factory=dict)
    nominations: Mapping[str, str] = field(default_factory=dict)
    evictions: tuple[Eviction, ...] = ()
    enqueued: tuple[str, ...] = ()
    pending: Mapping[str, Reason] = field(default_factory=dict)
    pending_pods: Mapping[str, Reason] = field(default_factory=dict)
    shared_gpus: Mapping[str, tuple[GpuShare, ...]] = field(default_factory=dict)
    devices: Mapping[str, tuple[DeviceGrant, ...]] = field(default_factory=dict)
    numa: Mapping[str, tuple[NumaPart, ...]] = field(default_factory=dict)


# --- writing --------------------------------------------------------------------------------------


def plan_document(plan: Plan) -> PlanDocument:
    """Convert a plan to the content of a plan file."""
    evicted = (a for a in plan.actions if isinstance(a, Evict))
    evictions = [Eviction(a.task, a.action, a.preemptor, a.to, a.plugin, a.reason) for a in evicted]
    bound = [a for a in plan.actions if isinstance(a, Allocate)]
    return PlanDocument(
        certificate=plan.certificate,
        binds=plan.binds,
        nominations={a.task: a.node for a in plan.actions if isinstance(a, Nominate)},
        evictions=tuple(sorted(evictions, key=lambda e: e.pod)),
        enqueued=tuple(sorted(a.gang for a in plan.actions if isinstance(a, Enqueue))),
        pending=plan.pending,
        pending_pods=plan.pending_tasks,
        shared_gpus={a.task: a.shared_gpus for a in bound if a.shared_gpus},
        devices={
            a.task: grants
            for a in bound
            if (grants := tuple(grant for grant in a.devices if grant.devices))
        },
        numa={a.task: a.numa for a in bound if a.numa},
    )


def encode_plan(document: PlanDocument) -> dict[str, Any]:
    """Convert the content of a plan file to a JSON object."""
    evictions: list[dict[str, str]] = []
    for each in document.evictions:
        optional = {"to": each.to, "plugin": each.plugin, "reason": each.reason}
        evictions.append(
            {
                "pod": each.pod,
                "action": each.action,
                "for": each.preemptor,
                **{name: value for name, value in optional.items() if value},
            }
        )
    fields: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "enqueued": list(document.enqueued),
        "binds": dict(document.binds),
        "evictions": evictions,
        "nominations": dict(document.nominations),
        "pending": _encode_reasons(document.pending),
        "pendingPods": _encode_reasons(document.pending_pods),
        "certificate": _encode_certificate(document.certificate),
    }
    if document.shared_gpus:
        fields["cards"] = {
            key: [
                {
                    "gpu": use.key,
                    "memory": use.memory,
                    "cores": use.cores,
                    "container": use.container,
                    **({"instance": use.instance} if use.instance else {}),
                    **({"npu": use.npu} if use.npu else {}),
                }
                for use in shares
            ]
            for key, shares in document.shared_gpus.items()
        }
    if document.devices:
        fields["devices"] = {
            key: [
                {"claim": grant.claim, "request": request, **device._asdict()}
                for grant in grants
                for request, device in grant.devices
            ]
            for key, grants in document.devices.items()
        }
    if document.numa:
        fields["numa"] = {
            key: [{"node": part.cell, "cpus": part.cpus, "gpus": part.gpus} for part in parts]
            for key, parts in document.numa.items()
        }
    return fields


def write_plan(plan: Plan) -> str:
    """Return a plan file's text; keys are sorted, so equal plans result in equal text."""
    return format_document(plan_document(plan))


def format_document(document: PlanDocument) -> str:
    """Format the content of a plan file as JSON text with sorted keys."""
    found = encode_plan(document)
    return f"{write_json(found, indent=2, sort_keys=True)}\n"


def _encode_reasons(reasons: Mapping[str, Reason]) -> dict[str, Any]:
    return {key: {"code": r.code.value, "message": r.message} for key, r in reasons.items()}


def _encode_certificate(certificate: Certificate) -> dict[str, Any]:
    return {
        "levels": [encode_level(level) for level in certificate.levels],
        "engine": certificate.engine,
        "seconds": certificate.seconds,
        "stopped": certificate.stopped,
        "relaxed": list(certificate.relaxed),
        "shares": [
            {"queue": s.queue, "share": s.share, "ideal": s.ideal} for s in certificate.shares
        ],
        "limitations": list(certificate.limitations),
        "keptIdle": list(certificate.kept_idle),
        "proved": certificate.is_proved,
    }


def encode_level(level: LevelResult) -> dict[str, Any]:
    """Format one objective level as a JSON object."""
    return {
        "name": level.name,
        "unit": level.unit,
        "sense": level.sense.value,
        "value": level.value,
        "bound": level.bound,
        "status": level.status.value,
    }


# --- reading --------------------------------------------------------------------------------------


def read_plan(source: str) -> tuple[PlanDocument | None, tuple[FieldError, ...]]:
    """Parse the text of a plan file; return its content, or None if invalid, and all errors."""
    try:
        obj = json.loads(source)
    except (ValueError, RecursionError) as e:
        return None, (FieldError("plan", source, f"is not JSON: {why_unreadable(e)}"),)
    return parse_plan(obj)


def parse_plan(obj: object) -> tuple[PlanDocument | None, tuple[FieldError, ...]]:
    """Parse a plan file's JSON object; return its content, or None if invalid, and all errors."""
    errors: list[FieldError] = []
    whole = Fields(obj, published_schema(KIND), "", errors)
    for name in ("apiVersion", "kind"):
        whole.text(name)
    document = PlanDocument(
        certificate=_certificate(whole, errors),
        binds=_nodes(whole, "binds"),
        nominations=_nodes(whole, "nominations"),
        evictions=tuple(_eviction(each) for each in whole.records("evictions")),
        enqueued=tuple(_checked(whole, "enqueued", whole.texts("enqueued"))),
        pending=dict(_reasons(whole, "pending")),
        pending_pods=dict(_reasons(whole, "pendingPods")),
        shared_gpus={
            key: tuple(map(_gpu_share, parts)) for key, parts in _read_shares(whole, "cards")
        },
        devices={key: _grants(parts) for key, parts in _read_shares(whole, "devices")},
        numa={
            key: tuple(
                NumaPart(*(part.integer(name) for name in ("node", "cpus", "gpus")))
                for part in parts
            )
            for key, parts in _read_shares(whole, "numa")
        },
    )
    return None if errors else document, tuple(errors)


def _checked(fields: Fields, name: str, keys: Iterable[str]) -> Iterator[str]:
    """Yield the given object keys; report an error for each key that is not `namespace/name`."""
    for key in keys:
        if not _KEY.fullmatch(key):
            fields.reject(f"{name}[{key}]", key, _NOT_A_KEY)
        yield key


def _nodes(fields: Fields, name: str) -> dict[str, str]:
    found = fields.texts_by_name(name)
    return {key: found[key] for key in _checked(fields, name, sorted(found))}


def _read_shares(whole: Fields, name: str) -> Iterator[tuple[str, Iterator[Fields]]]:
    """Yield each pod key in the field `name`, with parsers for the list items under the key."""
    obj = whole.raw(name)
    listed = obj if isinstance(obj, dict) else {}
    if obj is not None and not isinstance(obj, dict):
        whole.reject(name, obj, "is not a mapping of names to values")
    shown = {key: {"parts": listed[key]} for key in _checked(whole, name, sorted(listed))}
    inner = record(parts=published_schema(KIND)["properties"][name]["additionalProperties"])
    for key, each in shown.items():
        yield key, whole.nested_fields(f"{name}[{key}]", each, inner).records("parts")


def _gpu_share(fields: Fields) -> GpuShare:
    memory, cores, container = (fields.integer(n) for n in ("memory", "cores", "container"))
    instance, npu = fields.text("instance"), fields.text("npu")
    return GpuShare(fields.text("gpu"), memory, cores, container, instance, npu)


def _grants(parts: Iterator[Fields]) -> tuple[DeviceGrant, ...]:
    found: dict[str, list[tuple[str, DeviceId]]] = {}
    for each in parts:
        claim = each.text("claim")
        if claim and not _KEY.fullmatch(claim):
            each.reject("claim", claim, _NOT_A_KEY)
        device = DeviceId(*(each.text(name) for name in DeviceId._fields))
        found.setdefault(claim, []).append((each.text("request"), device))
    return tuple(DeviceGrant(claim, tuple(devices)) for claim, devices in found.items())


def _eviction(fields: Fields) -> Eviction:
    names = ("pod", "action", "for", "to", "plugin", "reason")
    eviction = Eviction(*(fields.text(name) for name in names))
    if not (eviction.preemptor or eviction.plugin):
        fields.reject("for", "", "is missing: name a PodGroup that gets the capacity, or a plugin")
    for name, key in (("pod", eviction.pod), ("for", eviction.preemptor)):
        if key and not _KEY.fullmatch(key):
            fields.reject(name, key, _NOT_A_KEY)
    return eviction


def _reasons(fields: Fields, name: str) -> Iterator[tuple[str, Reason]]:
    found = {key: each for key, each in fields.records_by_name(name)}
    for key in _checked(fields, name, sorted(found)):
        code, message = found[key].text("code"), found[key].text("message")
        if code:
            yield key, Reason(ReasonCode(code), message)


def _certificate(whole: Fields, errors: list[FieldError]) -> Certificate:
    fields = whole.optional_record("certificate")
    if fields is None:
        return Certificate((), "", 0.0, "")
    before = len(errors)
    certificate = Certificate(
        levels=tuple(parse_level(each) for each in fields.records("levels")),
        engine=fields.text("engine"),
        seconds=_seconds(fields),
        stopped=fields.text("stopped"),
        relaxed=fields.texts("relaxed"),
        shares=tuple(
            QueueShare(each.text("queue"), each.integer("share"), each.integer("ideal"))
            for each in fields.records("shares")
        ),
        limitations=fields.texts("limitations"),
        kept_idle=fields.texts("keptIdle"),
    )
    proved = fields.boolean("proved")
    if len(errors) == before and proved is not certificate.is_proved:
        right = json.dumps(certificate.is_proved)
        fields.reject("proved", proved, _NOT_PROVED.format(right))
    return certificate


def parse_level(fields: Fields) -> LevelResult:
    """Parse the result of one objective level."""
    return LevelResult(
        name=fields.text("name"),
        unit=fields.text("unit"),
        sense=Sense(fields.text("sense") or Sense.MAX),
        value=fields.integer("value"),
        bound=fields.optional_integer("bound"),
        status=LevelStatus(fields.text("status") or LevelStatus.SKIPPED),
    )


_MOST_SECONDS: Final = 1e15


def _seconds(fields: Fields) -> float:
    value = fields.raw("seconds")
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value < _MOST_SECONDS
    ):
        fields.reject("seconds", value, _NOT_SECONDS)
        return 0.0
    return float(value)


# --- restoring a plan -----------------------------------------------------------------------------


def restore_plan(document: PlanDocument, snapshot: Snapshot) -> tuple[Plan, tuple[FieldError, ...]]:
    """Return the plan in a document, and an error for each pod that the snapshot lacks.

    The actions are in an executable order: enqueue gangs, evict pods, bind pods, nominate pods.
    Actions of one type are sorted by key.
    """
    errors: list[FieldError] = []
    waiting = {t.key: t for g in snapshot.gangs for t in g.tasks if not t.node}
    running = {t.key: t for n in snapshot.nodes for t in n.residents}
    actions: list[Action] = [Enqueue(gang) for gang in document.enqueued]
    for number, each in enumerate(document.evictions):
        victim = running.get(each.pod)
        if victim is None:
            errors.append(FieldError(f"evictions[{number}].pod", each.pod, _NO_VICTIM))
        else:
            cause = (each.preemptor, each.to, each.plugin, each.reason)
            actions.append(Evict(each.pod, victim.node, each.action, *cause))
    for key, node in sorted(document.binds.items()):
        task = waiting.get(key)
        if task is None:
            errors.append(FieldError(f"binds[{key}]", node, _NO_POD))
        else:
            bind = Allocate(
                key,
                node,
                task.gang,
                shared_gpus=document.shared_gpus.get(key, ()),
                devices=document.devices.get(key, ()),
                numa=document.numa.get(key, ()),
            )
            actions.append(bind)
    for key, node in sorted(document.nominations.items()):
        task = waiting.get(key)
        if task is None:
            errors.append(FieldError(f"nominations[{key}]", node, _NO_POD))
        else:
            actions.append(Nominate(key, node, task.gang))
    plan = Plan(tuple(actions), document.certificate, document.pending, document.pending_pods)
    return plan, tuple(errors)
