"""Track the closed nodes that a process knows from its received events, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LAG_S: Final = 1.0
"""The longest time from an event in the socket of a busy process to its next request."""


class NodeKnowledge:
    """The nodes that a process knows as closed, with the times of the events.

    Only one thread may use this object.
    """

    def __init__(self) -> None:
        self._nodes: set[str] = set()
        self._closed_s: dict[str, float] = {}

    def forget(self) -> None:
        """Clear all nodes, because another process receives the events from now on."""
        self._nodes.clear()
        self._closed_s.clear()

    def resume(self, at_s: float) -> None:
        """Reset the time of each closed node, because a stopped process reads no events."""
        self._closed_s = dict.fromkeys(self._closed_s, at_s)

    def receive_list(self, nodes: Iterable[Mapping[str, Any]], at_s: float) -> None:
        """Record a complete list of the nodes."""
        listed = {node["metadata"]["name"]: node for node in nodes}
        for name in self._nodes - listed.keys():
            self._closed_s.setdefault(name, at_s)
        for node in listed.values():
            self._receive(node, at_s)

    def receive_event(self, event: Mapping[str, Any], at_s: float) -> None:
        """Record an event of a watch."""
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
        """Return a sentence about a bind to a node that the process knew as closed, or an empty
        text.

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
