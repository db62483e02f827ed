"""What a process knows of closed nodes, by the events that it has received; no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LAG_S: Final = 1.0
"""A process on a busy machine may take so long from an event in its socket to a request."""


class NodeKnowledge:
    """Which nodes a process knows as closed, and since when; one thread at a time."""

    def __init__(self) -> None:
        self._nodes: set[str] = set()
        self._closed_s: dict[str, float] = {}

    def forget(self) -> None:
        """Begin anew: another process receives the events from now on."""
        self._nodes.clear()
        self._closed_s.clear()

    def resume(self, at_s: float) -> None:
        """Have the process continue: it has read nothing while it was stopped."""
        self._closed_s = dict.fromkeys(self._closed_s, at_s)

    def receive_list(self, nodes: Iterable[Mapping[str, Any]], at_s: float) -> None:
        """Receive all nodes that there are."""
        listed = {node["metadata"]["name"]: node for node in nodes}
        for name in self._nodes - listed.keys():
            self._closed_s.setdefault(name, at_s)
        for node in listed.values():
            self._receive(node, at_s)

    def receive_event(self, event: Mapping[str, Any], at_s: float) -> None:
        """Receive an event of a watch."""
        if event["type"] == "DELETED":
            self._closed_s.setdefault(event["object"]["metadata"]["name"], at_s)
        elif event["type"] in ("ADDED", "MODIFIED"):
            self._receive(event["object"], at_s)

    def _receive(self, node: Mapping[str, Any], at_s: float) -> None:
        name = node["metadata"]["name"]
        self._nodes.add(name)
        if _is_closed(node):
            self._closed_s.setdefault(name, at_s)
        else:
            self._closed_s.pop(name, None)

    def find_late_bind(self, pod: str, node: str, at_s: float) -> str:
        """A sentence about a bind to a node that the process knew as closed; empty if it is well.

        `at_s` is the time at which the request was sent.
        """
        late_s = at_s - self._closed_s.get(node, at_s)
        if late_s <= LAG_S:
            return ""
        return f"{pod} was bound to {node} {late_s:.1f} s after the process knew it as closed"


def _is_closed(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    is_ready = all(each["status"] == "True" for each in conditions if each["type"] == "Ready")
    return bool(node.get("spec", {}).get("unschedulable")) or not is_ready
