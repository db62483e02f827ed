"""Record the states of the pods of a namespace, from a watch."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self, TypeVar

from optsched.units.quantity import parse_quantity
from tests.support.api import PATIENCE_S, Refused, Watch, is_current, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tests.support.api import Api, Raw

T = TypeVar("T")

GROUP_NAME = "scheduling.k8s.io/group-name"
GPU = "nvidia.com/gpu"
RECONNECT_S = 0.1
BINDS_S = 30.0
"""The limit for the binds of one small gang on a busy machine."""


@dataclass(frozen=True)
class Moment:
    """The state of one pod from a time on. `is_there` is false after the deletion of the pod."""

    at_s: float
    name: str
    uid: str
    gang: str
    node: str
    phase: str
    cpus: Fraction | int
    is_there: bool
    gpus: int = 0
    is_evicted: bool = False
    is_terminating: bool = False
    version: int = 0

    @property
    def is_bound(self) -> bool:
        return self.is_there and bool(self.node)

    @property
    def takes_room(self) -> bool:
        return self.is_bound and self.phase not in ("Succeeded", "Failed")

    @property
    def place(self) -> tuple[str, str, str, bool]:
        """The fields that change when a pod is created, moves, starts, ends or is deleted."""
        return (self.uid, self.node, self.phase, self.is_there)


def gangs_of(pods: Iterable[Moment]) -> set[str]:
    """Return the gangs of some pods."""
    return {pod.gang for pod in pods}


def moment_of(pod: Raw, at_s: float, *, is_there: bool) -> Moment:
    """Return the state of a pod at a time."""
    meta, spec = pod["metadata"], pod["spec"]
    return Moment(
        at_s=at_s,
        name=meta["name"],
        uid=meta["uid"],
        gang=meta.get("annotations", {}).get(GROUP_NAME, ""),
        node=spec.get("nodeName", ""),
        phase=pod.get("status", {}).get("phase", ""),
        cpus=_asked(spec, "cpu"),
        is_there=is_there,
        gpus=int(_asked(spec, GPU)),
        is_evicted=_is_evicted(pod),
        is_terminating="deletionTimestamp" in meta,
        version=int(meta["resourceVersion"]),
    )


def _is_evicted(pod: Raw) -> bool:
    """Return whether the eviction API has evicted a pod."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c.get("reason") == "EvictionByEvictionAPI" for c in conditions)


def _asked(spec: Mapping[str, Any], resource: str) -> Fraction:
    """Return the total request of a pod's containers, in whole units and fractions."""
    asked = (c.get("resources", {}).get("requests", {}) for c in spec["containers"])
    milli = sum(parse_quantity(requests.get(resource, "0")).milli() for requests in asked)
    return Fraction(milli, 1000)


class Story:
    """A recorder of the pods of a namespace, which survives restarts of the server.

    The watch may lag behind the server. Therefore every query lists the pods first, and waits until
    the watch has delivered all of them. Only `told_pods` does not list the pods.
    """

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._news = threading.Condition()
        self._moments: list[Moment] = []
        self._now: dict[str, Moment] = {}
        self._known: dict[str, tuple[int, bool]] = {}
        self._prober = 0
        self._ends = False
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._follow, name=f"story of {namespace}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._news:
            self._ends = True
            if self._watch is not None:
                self._watch.close()
        self._thread.join()

    # --- current and past states -----------------------------------------------------------------

    def until(self, probe: Callable[[Story], T], what: str, seconds: float = PATIENCE_S) -> T:
        """Return the first true result of the probe, or raise AssertionError after `seconds`."""
        self._catch_up()
        return self._await(probe, what, seconds)

    def summary(self) -> str:
        """Return a text with the pods, their nodes and phases."""
        return ", ".join(f"{p.name} {p.node or '-'} {p.phase}" for p in self.told_pods())

    def pods(self, gang: str | None = None) -> list[Moment]:
        """Return the existing pods of one gang, or of all gangs."""
        self._catch_up()
        return self.told_pods(gang)

    def told_pods(self, gang: str | None = None) -> list[Moment]:
        """Return the existing pods by the state of the watch, even while the server is down."""
        with self._news:
            there = [pod for pod in self._now.values() if pod.is_there]
        return [pod for pod in there if gang is None or pod.gang == gang]

    def num_bound(self, gang: str) -> int:
        """Return the number of bound pods of a gang, including completed pods."""
        return sum(pod.is_bound for pod in self.pods(gang))

    def bound(self) -> dict[str, int]:
        """Return the number of bound pods by gang."""
        pods = self.pods()
        return {gang: sum(p.is_bound for p in pods if p.gang == gang) for gang in gangs_of(pods)}

    def moments(self) -> list[Moment]:
        """Return all recorded states, in order."""
        self._catch_up()
        with self._news:
            return list(self._moments)

    def held(self, gang: str) -> int:
        """Return the number of pods of a gang that hold resources."""
        return sum(pod.takes_room for pod in self.pods(gang))

    def nodes_of(self, gang: str) -> dict[str, int]:
        """Return the number of pods of a gang that hold resources, by node."""
        return dict(Counter(pod.node for pod in self.pods(gang) if pod.takes_room))

    def _catch_up(self) -> None:
        """Wait until the watch has delivered all changes of the server, except within a probe."""
        if self._prober == threading.get_ident():
            return
        listed = until(self._list, "the server answers")
        assert listed is not None
        self._await(lambda _: is_current(listed, self._known), "the watch is current", PATIENCE_S)

    def _list(self) -> Raw | None:
        """Return the list of pods, or None from a server that is starting."""
        try:
            return self._api.get(self._path)
        except (OSError, http.client.HTTPException, ValueError, Refused):
            return None

    def _await(self, probe: Callable[[Story], T], what: str, seconds: float) -> T:
        deadline = time.monotonic() + seconds
        with self._news:
            while not (found := self._probe(probe)):
                left = deadline - time.monotonic()
                assert left > 0, f"not within {seconds:g} s: {what}; pods: {self.summary()}"
                self._news.wait(left)
            return found

    def _probe(self, probe: Callable[[Story], T]) -> T:
        self._prober = threading.get_ident()
        try:
            return probe(self)
        finally:
            self._prober = 0

    # --- invariants ------------------------------------------------------------------------------

    def assert_bound_once(self) -> None:
        """Check that no pod ever changed its node."""
        node_of: dict[str, str] = {}
        for moment in self.moments():
            before = node_of.setdefault(moment.uid, moment.node)
            assert before in ("", moment.node), f"{moment.name}: {before}, then {moment.node}"
            node_of[moment.uid] = moment.node

    def assert_within(self, cpus: Mapping[str, int]) -> None:
        """Check that no node ever held more CPUs than its capacity."""
        now: dict[str, Moment] = {}
        for moment in self.moments():
            now[moment.name] = moment
            used = sum(p.cpus for p in now.values() if p.takes_room and p.node == moment.node)
            if moment.node:
                assert used <= cpus[moment.node], f"{moment.node} holds {used} CPUs"

    def assert_none_moves_since(self, number: int) -> None:
        """Check that no pod changed after the first `number` recorded states."""
        moments = self.moments()
        place = {moment.name: moment.place for moment in moments[:number]}
        moved = [m for m in moments[number:] if place.get(m.name) != m.place]
        assert not moved, f"it moved: {moved}; before: {[place.get(m.name) for m in moved]}"

    def partial_s(self, gang: str, min_member: int) -> float:
        """Return the longest time for which a gang was partially bound, up to now."""
        longest, since, now = 0.0, None, dict[str, Moment]()
        for moment in self.moments():
            now[moment.name] = moment
            num_bound = sum(pod.is_bound for pod in now.values() if pod.gang == gang)
            if since is not None:
                longest = max(longest, moment.at_s - since)
            is_partial = 0 < num_bound < min_member
            since = (moment.at_s if since is None else since) if is_partial else None
        return longest if since is None else max(longest, time.monotonic() - since)

    # --- the watch -------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._ends:
            # A restarting server refuses connections, cuts them, and is not ready at first.
            with suppress(OSError, http.client.HTTPException, ValueError, Refused):
                for pod, is_there in self._events():
                    self._note(moment_of(pod, time.monotonic(), is_there=is_there))
            with self._news:
                self._news.wait_for(lambda: self._ends, RECONNECT_S)
        self._api.close()

    def _events(self) -> Iterator[tuple[Raw, bool]]:
        listed = self._api.get(self._path)
        uids = {pod["metadata"]["uid"] for pod in listed["items"]}
        for lost in [pod for pod in self.told_pods() if pod.uid not in uids]:
            self._note(replace(lost, at_s=time.monotonic(), is_there=False))
        for pod in listed["items"]:
            yield pod, True
        with self._news:
            if self._ends:
                return
            self._watch = Watch(self._api, self._path, listed["metadata"]["resourceVersion"])
        for event in self._watch:
            if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                return
            yield event["object"], event["type"] != "DELETED"

    def _note(self, moment: Moment) -> None:
        with self._news:
            self._now[moment.name] = moment
            self._known[moment.uid] = (moment.version, moment.is_there)
            self._moments.append(moment)
            self._news.notify_all()
