"""Read the API server's audit log, for requests by user and delays of events."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from optsched.local.assets import shipped
from optsched.local.components import API_SERVER, Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Raw = dict[str, Any]

READS: Final = frozenset({"list", "watch"})


def audited(folder: Path, rules: Sequence[Raw]) -> tuple[Options, Audit]:
    """Return the options of a control plane with an audit policy, and its audit log."""
    policy, log = folder / "policy.json", folder / "audit.log"
    kind = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
    policy.write_text(json.dumps({**kind, "rules": rules}))
    flags = [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
    extra = {API_SERVER: [*flags, "--audit-log-mode=blocking"]}
    return Options(extra_args=extra, definitions=shipped("crds")), Audit(log)


@dataclass(slots=True)
class Measured:
    """The requests and events of a workload in the audit log.

    Attributes
    ----------
    requests
        The number of requests by process, and by verb with resource.
    shapes
        The number of bodies by process, verb with resource and field names.
    delays_s
        The delays of events by process and reason.
    stamps_s
        The difference between the whole-second event time and the bind time, per event of a bind.

    """

    num_pods: int = 0
    requests: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    shapes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    delays_s: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    stamps_s: list[float] = field(default_factory=list)

    def per_pod(self, process: str) -> float:
        """Return the number of requests of a process per bound pod, without lists and watches."""
        counts = self.requests[process]
        number = sum(n for key, n in counts.items() if key.split()[0] not in READS)
        return number / max(1, self.num_pods)


def read_audit(entries: Iterable[Raw]) -> Measured:
    """Count the requests of an audit log."""
    measured = Measured()
    bound_s: dict[tuple[str, str], float] = {}
    for entry in entries:
        process, ref = entry["user"]["username"], entry.get("objectRef") or {}
        part = f"/{ref['subresource']}" if "subresource" in ref else ""
        refused = entry["responseStatus"].get("code", 200) >= 400
        key = f"{entry['verb']} {ref.get('resource', entry['requestURI'])}{part}"
        measured.requests[process][f"{key} (refused)" if refused else key] += 1
        body = entry.get("requestObject") or {}
        done_s = datetime.fromisoformat(entry["stageTimestamp"]).timestamp()
        if refused:
            continue
        if key == "create pods/binding":
            measured.num_pods += 1
            bound_s[ref["namespace"], ref["name"]] = done_s
        if ref.get("resource") == "events":
            reason = body.get("reason") or "(again)"
            about = body.get("involvedObject") or {}
            measured.shapes[process][f"{key} {about.get('kind', '')} {reason}"] += 1
            if "lastTimestamp" not in body:  # another client's events.k8s.io event
                continue
            stamped_s = datetime.fromisoformat(body["lastTimestamp"]).timestamp()
            happened = (about.get("namespace", ""), about.get("name", ""))
            if reason == "Scheduled" and happened in bound_s:
                measured.stamps_s.append(stamped_s - bound_s[happened])
                stamped_s = bound_s[happened]
            measured.delays_s[process, reason].append(done_s - stamped_s)
        elif body:
            measured.shapes[process][f"{key} {shape_of(body)}"] += 1
    return measured


def shape_of(body: Raw) -> str:
    """Return the field names of a body, two levels deep, with values of phases only."""
    found = []
    for name, value in sorted(body.items()):
        if name in ("apiVersion", "kind") or not isinstance(value, dict):
            continue
        inner = [
            f"phase={inner}"
            if key == "phase"
            else f"state={inner.get('phase', '')}"
            if key == "state" and isinstance(inner, dict)
            else key
            for key, inner in sorted(value.items())
        ]
        found.append(f"{name}.{{{', '.join(inner)}}}")
    return " ".join(found)


class Audit:
    """An audit log with a position, so that each entry is read once."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> list[Raw]:
        """Return the new entries of the log."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
