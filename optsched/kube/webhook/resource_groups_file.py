"""The file of resource groups, read again when it changes; a broken one keeps the last good one.

Contents are compared, not times or inodes: a ConfigMap that is mounted swaps symbolic links.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.admission.resource_groups import GroupsError, read_resource_groups

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optsched.admission.world import Settings

log = logging.getLogger(__name__)


class ResourceGroupsFile:
    """What an administrator has chosen, with the resource groups that a file holds now.

    `on_verdict` is told how a content was found that is new: empty where it is good.
    """

    def __init__(self, path: Path, settings: Settings, on_verdict: Callable[[str], None]) -> None:
        """Read it for the first time; raises OSError or ValueError where that fails."""
        self._path = path
        self._on_verdict = on_verdict
        self._seen = _content(path)
        groups = read_resource_groups(self._seen)
        self._settings = replace(settings, resource_groups=groups)

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self._settings

    def poll(self) -> None:
        """Look at the file again. What is wrong with one content is told once."""
        try:
            content = _content(self._path)
        except (OSError, ValueError) as e:
            self._reject(f"\0{e}", str(e))
            return
        if content == self._seen:
            return
        try:
            groups = read_resource_groups(content)
        except GroupsError as e:
            self._reject(content, str(e))
            return
        self._seen = content
        self._settings = replace(self._settings, resource_groups=groups)
        log.info("%s read again: %d resource groups", self._path, len(groups))
        self._on_verdict("")

    def _reject(self, seen: str, problem: str) -> None:
        if seen == self._seen:
            return
        self._seen = seen
        log.error("%s not read again, what was good last stays: %s", self._path, problem)
        self._on_verdict(problem)


def _content(path: Path) -> str:
    return path.read_text("utf-8")
