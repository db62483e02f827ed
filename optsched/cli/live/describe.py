"""Describe an object, its events and its rejected pods in the style of `kubectl describe`.

A quota or an admission webhook may reject a pod, a PersistentVolumeClaim or a Service. The job
controller then writes an event `FailedCreate` about the job, with the API server's message.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from optsched.api.job import JobPhase
from optsched.api.kinds import (
    CONFIG_MAP,
    EVENT,
    JOB,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD_GROUP,
    SECRET,
    SERVICE,
    Ref,
)
from optsched.api.wellknown import FULL_MESSAGE
from optsched.cli.base.connection import list_kind
from optsched.cli.base.table_columns import NOTHING, format_span
from optsched.units import TimestampError, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.api.job import Job
    from optsched.kube.client.client import Client

    Raw = Mapping[str, Any]

_META: Final = ("creationTimestamp", "deletionTimestamp", "generation", "ownerReferences")
_META_ENDS: Final = ("resourceVersion", "uid")
_WORDS: Final = re.compile(r"[a-z]+|[A-Z][a-z]+|[A-Z]+(?![a-z])|\d+")
_NAME: Final = re.compile(r"[a-z][A-Za-z0-9]*")
_LONG: Final = {"uid": "UID", "apiVersion": "API Version"}
_AS_THEY_ARE: Final = frozenset(
    {
        *("labels", "annotations", "matchLabels", "nodeSelector", "plugins", "limits", "requests"),
        *("capability", "deserved", "allocated", "resource", "controlledResources"),
        *("taskStatusCount", "phase"),
    }
)
"""Fields whose values are mappings with user-chosen keys, which are printed unchanged."""


def describe_object(obj: Raw, more: Raw) -> Iterator[str]:
    """Yield the lines that describe an object.

    `more` holds additional fields, which follow `kind`.
    """
    meta = obj["metadata"]
    head = {
        "name": meta["name"],
        **({"namespace": meta["namespace"]} if meta.get("namespace") else {}),
        "labels": meta.get("labels") or NOTHING,
        "annotations": meta.get("annotations") or NOTHING,
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        **more,
    }
    yield from format_fields(head)
    known = {key: meta[key] for key in (*_META, *_META_ENDS) if key in meta}
    yield from format_fields({"metadata": known})
    yield from format_fields({key: obj[key] for key in ("spec", "status") if obj.get(key)})


def format_fields(fields: Raw, indent: int = 0, *, are_words: bool = True) -> Iterator[str]:
    """Yield the lines of a mapping: plain values next to their keys, nested values below them.

    The key `name` comes first, so each list item begins with its name.
    """
    blanks = " " * indent
    fields = dict(sorted(fields.items(), key=lambda item: item[0] != "name"))
    titles = {key: f"{split_words(key) if are_words else key}:" for key in fields}
    flat = [len(titles[key]) for key, value in fields.items() if not _is_deep(value)]
    width = max(flat, default=0) + 2
    for key, value in fields.items():
        if _is_deep(value):
            yield f"{blanks}{titles[key]}"
            yield from _nested_lines(
                value, indent + 2, are_words=are_words and key not in _AS_THEY_ARE
            )
        else:
            yield from _field_lines(f"{blanks}{titles[key]:{width}}", value)


def _is_deep(value: object) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _nested_lines(value: Any, indent: int, *, are_words: bool) -> Iterator[str]:  # noqa: ANN401  JSON
    if isinstance(value, dict):
        yield from format_fields(value, indent, are_words=are_words)
        return
    for item in value:
        if not _is_deep(item):
            yield from _field_lines(" " * indent, item)
            continue
        first, *rest = _nested_lines(item, indent + 2, are_words=are_words)
        yield f"{' ' * indent}- {first.lstrip()}"
        yield from rest


def _field_lines(head: str, value: object) -> Iterator[str]:
    """Yield a field name and its value; further lines of the value align with its first line."""
    text = NOTHING if value is None or value in ({}, []) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    first, *rest = text.splitlines() or [""]
    yield (head + first).rstrip()
    yield from (" " * len(head) + line for line in rest)


def split_words(key: str) -> str:
    """Split a field name into words, such as Min Available for minAvailable."""
    if key in _LONG:
        return _LONG[key]
    if not _NAME.fullmatch(key):
        return key
    return " ".join(word if word.isupper() else word.capitalize() for word in _WORDS.findall(key))


# --- events --------------------------------------------------------------------------------------

EVENT_HEADINGS: Final = ("Type", "Reason", "Age", "From", "Message")


def event_rows(events: Sequence[Raw], now_ms: int) -> list[list[str]]:
    """Return the table rows of events, oldest first."""
    rows = []
    for event in sorted(events, key=last_ms):
        source = event.get("source") or {}
        series = event.get("series") or {}
        number = int(event.get("count") or series.get("count") or 1)
        age = format_span(now_ms - last_ms(event))
        if number != 1:
            age = f"{age} (x{number} over {format_span(now_ms - _first_ms(event))})"
        where = [source.get("component") or event.get("reportingComponent"), source.get("host")]
        cells = [
            event.get("type"),
            event.get("reason"),
            age,
            ", ".join(str(part) for part in where if part),
            " ".join(full_message(event).split()),
        ]
        rows.append([str(cell or NOTHING) for cell in cells])
    return rows


def full_message(event: Raw) -> str:
    """Return an event's message, including any text that exceeded the API server's limit."""
    message = str(event.get("message") or "")
    whole = str((event["metadata"].get("annotations") or {}).get(FULL_MESSAGE) or "")
    # The annotation `FULL_MESSAGE` may hold an earlier message of the same event.
    is_cut = message.endswith("…") and whole.startswith(message[:-1])
    return whole if is_cut else message


def last_ms(event: Raw) -> int:
    """Return the time at which an event was last seen, in ms since 1970; 0 if unknown."""
    series = event.get("series") or {}
    return _time_ms(event.get("lastTimestamp"), series.get("lastObservedTime")) or _first_ms(event)


def _first_ms(event: Raw) -> int:
    created = event["metadata"].get("creationTimestamp")
    return _time_ms(event.get("firstTimestamp"), event.get("eventTime"), created)


def _time_ms(*texts: object) -> int:
    for text in texts:
        try:
            return parse_time_ms(text)
        except TimestampError:
            continue
    return 0


FAILED_CREATE: Final = "FailedCreate"
"""Reason of events about rejected pods; commands also show this reason as the job's reason."""

HIDDEN_REJECTIONS: Final = "reasons for missing pods are not shown"
"""Message that commands print if the user may not list the events of jobs."""

_CREATING_PHASES: Final = (JobPhase.PENDING, JobPhase.RUNNING, JobPhase.RESTARTING)


_REJECTION: Final = re.compile(r"(\w+) ([^\s/]+)/(\S+) was not created: ")
_JOB_OBJECTS: Final = {
    kind.kind: kind
    for kind in (POD_GROUP, PERSISTENT_VOLUME_CLAIM, CONFIG_MAP, SECRET, SERVICE, NETWORK_POLICY)
}
"""Kinds of objects that the controller creates for a job, in addition to pods."""
_MOST_LOOKUPS: Final = 100
"""Maximum number of rejected objects for which a command checks whether they exist now."""


async def list_rejections(client: Client, namespace: str, name: str = "") -> list[Raw]:
    """Return the events about rejected pods and other rejected objects of jobs.

    An empty `name` selects all jobs, and an empty `namespace` all namespaces.
    """
    about = {"reason": FAILED_CREATE, "involvedObject.kind": JOB.kind}
    if name:
        about["involvedObject.name"] = name
    fields = ",".join(f"{key}={value}" for key, value in about.items())
    return await drop_resolved_rejections(
        client, await list_kind(client, EVENT, namespace, fields=fields)
    )


async def drop_resolved_rejections(client: Client, events: Sequence[Raw]) -> list[Raw]:
    """Drop events about rejected non-pod objects that exist now; keep events about pods."""
    missing: dict[Ref, bool] = {}
    found = []
    for event in sorted(events, key=last_ms, reverse=True):
        ref = _find_rejected_object(event)
        if ref is not None and ref not in missing:
            missing[ref] = len(missing) < _MOST_LOOKUPS and await _is_missing(client, ref)
        if ref is None or missing[ref]:
            found.append(event)
    return found


def _find_rejected_object(event: Raw) -> Ref | None:
    """Return the non-pod object whose creation failed, or None for other events."""
    if event.get("reason") != FAILED_CREATE:
        return None
    named = _REJECTION.match(str(event.get("message") or ""))
    kind = _JOB_OBJECTS.get(named[1]) if named else None
    return None if named is None or kind is None else Ref(kind, named[2], named[3])


async def _is_missing(client: Client, ref: Ref) -> bool:
    """Return whether an object is missing; False if the user may not read it."""
    from optsched.kube.client.errors import Forbidden, NotFound

    try:
        await client.read_metadata(ref)
    except NotFound:
        return True
    except Forbidden:
        return False
    return False


def find_rejection(job: Job, events: Sequence[Raw]) -> str:
    """Return the message of the API server about a job's last unresolved rejection, or "".

    `events` is the result of `drop_resolved_rejections`, and may contain events about other jobs.
    """
    status = job.status
    if status.phase not in _CREATING_PHASES:
        return ""
    counts = status.counts
    is_whole = counts.alive + counts.succeeded + counts.failed >= job.spec.num_pods
    unmade = (event for event in events if event.get("reason") == FAILED_CREATE)
    mine = [
        event
        for event in unmade
        if (event.get("involvedObject") or {}).get("uid") == job.meta.uid
        and not (is_whole and _find_rejected_object(event) is None)
    ]
    newest = max(mine, key=last_ms, default=None)
    return "" if newest is None else " ".join(full_message(newest).split())
