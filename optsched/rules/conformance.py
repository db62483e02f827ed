"""Pods that keep the cluster alive are never evicted.

Mathematics: models/formulation/conformance.md. Volcano: `pkg/scheduler/plugins/conformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.domain.decisions import Evict
from optsched.rules.base import Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.rules.world import World

SYSTEM_NAMESPACE = "kube-system"


class Conformance(Rule):
    """No pod of `kube-system` is evicted."""

    name = "conformance"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for action in world.actions:
            if isinstance(action, Evict) and action.task.startswith(f"{SYSTEM_NAMESPACE}/"):
                yield Violation(
                    self.name, f"task {action.task}", f"evicted from {SYSTEM_NAMESPACE}"
                )
