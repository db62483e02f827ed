"""The state of a pod, in the words of `kubectl get pods`.

Source of the words: Kubernetes' pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Raw = Mapping[str, Any]


def ready_containers(pod: Raw) -> str:
    """How many containers are ready, of how many; sidecars count."""
    status = _status(pod)
    sidecars = _sidecars(pod)
    beside = [c for c in status.get("initContainerStatuses") or () if c.get("name") in sidecars]
    all_ = [*(status.get("containerStatuses") or ()), *beside]
    num_containers = len(_spec(pod).get("containers") or ()) + len(sidecars)
    return f"{sum(bool(c.get('ready')) for c in all_)}/{num_containers}"


def _sidecars(pod: Raw) -> frozenset[str]:
    """Sidecars: init containers that keep running."""
    containers = _spec(pod).get("initContainers") or ()
    return frozenset(c["name"] for c in containers if c.get("restartPolicy") == "Always")


def _spec(pod: Raw) -> Raw:
    return pod.get("spec") or {}


def _status(pod: Raw) -> Raw:
    return pod.get("status") or {}


def restarts_of(pod: Raw) -> int:
    """How often containers have been started again."""
    return sum(int(c.get("restartCount") or 0) for c in _status(pod).get("containerStatuses") or ())


def status_of_pod(pod: Raw) -> str:
    """The most specific reason, else the phase."""
    status = _status(pod)
    phase = str(status.get("phase") or "Unknown")
    if pod.get("metadata", {}).get("deletionTimestamp") and phase not in ("Succeeded", "Failed"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return _init_reason(pod) or _container_reason(status) or _plain_reason(status, phase)


def _plain_reason(status: Raw, phase: str) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("reason") == "SchedulingGated":
            return "SchedulingGated"
    return str(status.get("reason") or phase)


def _init_reason(pod: Raw) -> str:
    """Why a pod is not past its init containers; empty if it is."""
    status, sidecars = _status(pod), _sidecars(pod)
    if any(_is_true(c, "Initialized") for c in status.get("conditions") or ()):
        return ""
    num_containers = len(_spec(pod).get("initContainers") or ())
    for i, container in enumerate(status.get("initContainerStatuses") or ()):
        ended = (container.get("state") or {}).get("terminated")
        is_beside = container.get("name") in sidecars and container.get("started")
        if is_beside or (ended and not ended.get("exitCode")):
            continue
        return f"Init:{_init_why(container) or f'{i}/{num_containers}'}"
    return ""


def _init_why(container: Raw) -> str:
    state = container.get("state") or {}
    if state.get("terminated"):
        return _ended(state["terminated"])
    why = str((state.get("waiting") or {}).get("reason") or "")
    return "" if why == "PodInitializing" else why


def _is_true(condition: Raw, kind: str) -> bool:
    return condition.get("type") == kind and condition.get("status") == "True"


def _container_reason(status: Raw) -> str:
    """The reason of the first container that waits or has ended; a running one wins over both."""
    containers = status.get("containerStatuses") or ()
    reason = next((why for why in map(_container_state_reason, containers) if why), "")
    if reason != "Completed" or not any(map(_runs, containers)):
        return reason
    is_ready = any(_is_true(c, "Ready") for c in status.get("conditions") or ())
    return "Running" if is_ready else "NotReady"


def _container_state_reason(container: Raw) -> str:
    state = container.get("state") or {}
    waiting = str((state.get("waiting") or {}).get("reason") or "")
    return waiting or (_ended(state["terminated"]) if state.get("terminated") else "")


def _runs(container: Raw) -> bool:
    runs = (container.get("state") or {}).get("running") is not None
    return runs and bool(container.get("ready"))


def _ended(ended: Raw) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"
