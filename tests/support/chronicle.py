"""Everything that ever was of some kinds in a namespace: what no state at the end could tell."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Self

from tests.support.api import Refused, Watch, until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.api import Api, Raw


class Chronicle:
    """Follows collections, each by a watch of its own, as long as it is entered."""

    def __init__(self, api: Api, paths: Iterable[str]) -> None:
        self._objects: dict[str, dict[str, Raw]] = {path: {} for path in paths}
        self._lock = threading.Lock()
        self._watches = [(path, Watch(api, path, _version(api, path))) for path in self._objects]
        self._threads = [
            threading.Thread(target=self._follow, args=each, name=f"chronicle of {each[0]}")
            for each in self._watches
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _, watch in self._watches:
            watch.close()
        for thread in self._threads:
            thread.join()

    def _follow(self, path: str, watch: Watch) -> None:
        for event in watch:
            with self._lock:
                self._objects[path][event["object"]["metadata"]["uid"]] = event["object"]

    def all(self, path: str) -> list[Raw]:
        """Every object of a collection that ever was, each as it was last."""
        with self._lock:
            return list(self._objects[path].values())

    def uids(self, path: str) -> dict[str, set[str]]:
        """By name, the UIDs that objects of a collection ever had."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for obj in self.all(path):
            found[obj["metadata"]["name"]].add(obj["metadata"]["uid"])
        return dict(found)


def _version(api: Api, path: str) -> str:
    """Where a collection stands; a kind that was installed just now is not stored at once."""

    def listed() -> str:
        try:
            return str(api.get(path)["metadata"]["resourceVersion"])
        except Refused:
            return ""

    return until(listed, f"{path} is listed")
