"""Record the whole history of collections in a namespace, which a final state does not show."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Self

from tests.support.api import Refused, Watch, is_current, until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.api import Api, Raw


class Chronicle:
    """A context that records collections, each by a separate watch.

    The context exits after its watches have delivered all changes of the server.
    """

    def __init__(self, api: Api, paths: Iterable[str]) -> None:
        self._api = api
        self._events: dict[str, list[Raw]] = {path: [] for path in paths}
        self._lock = threading.Lock()
        self._before = {path: _listed(api, path) for path in self._events}
        self._watches = [
            (path, Watch(api, path, listed["metadata"]["resourceVersion"]))
            for path, listed in self._before.items()
        ]
        self._threads = [
            threading.Thread(target=self._follow, args=each, name=f"chronicle of {each[0]}")
            for each in self._watches
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for path in self._events if kind is None else ():
                listed = self._api.get(path)
                until(
                    lambda path=path, listed=listed: is_current(listed, self._known(path)),  # type: ignore[misc]
                    f"the watch of {path} is current",
                )
        finally:
            for _, watch in self._watches:
                watch.close()
            for thread in self._threads:
                thread.join()

    def _follow(self, path: str, watch: Watch) -> None:
        for event in watch:
            with self._lock:
                self._events[path].append(event)

    def _known(self, path: str) -> dict[str, tuple[int, bool]]:
        """Return the last version of each object, and whether it exists."""
        found = [(obj, True) for obj in self._before[path]["items"]]
        found += [(event["object"], event["type"] != "DELETED") for event in self.events(path)]
        return {
            obj["metadata"]["uid"]: (int(obj["metadata"]["resourceVersion"]), is_there)
            for obj, is_there in found
        }

    def events(self, path: str) -> list[Raw]:
        """Return the events of a collection, in order."""
        with self._lock:
            return list(self._events[path])

    def all(self, path: str) -> list[Raw]:
        """Return every object that a collection ever had, in its last state."""
        last = {event["object"]["metadata"]["uid"]: event["object"] for event in self.events(path)}
        return list(last.values())

    def uids(self, path: str) -> dict[str, set[str]]:
        """Return the UIDs that a collection ever had, by object name."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for obj in self.all(path):
            found[obj["metadata"]["name"]].add(obj["metadata"]["uid"])
        return dict(found)


def _listed(api: Api, path: str) -> Raw:
    """Return a collection, and wait until a newly installed kind is stored."""

    def listed() -> Raw | None:
        try:
            return api.get(path)
        except Refused:
            return None

    found = until(listed, f"{path} is listed")
    assert found is not None
    return found
