"""The file of resource groups, reloaded when it changes; the last valid content stays in force.

Contents are compared, not times or inodes: a mounted ConfigMap swaps symbolic links.
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
    """Settings with the resource groups of a file.

    `on_verdict` is called with the problem of each new content; empty if it is valid.
    """

    def __init__(self, path: Path, settings: Settings, on_verdict: Callable[[str], None]) -> None:
        """Read the file; raises OSError or ValueError if that fails."""
        self._path = path
        self._on_verdict = on_verdict
        self._seen = path.read_text("utf-8")
        groups = read_resource_groups(self._seen)
        self._settings = replace(settings, resource_groups=groups)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    def poll(self) -> None:
        """Reload the file if it changed; each problem is reported once."""
        try:
            content = self._path.read_text("utf-8")
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
