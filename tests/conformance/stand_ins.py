"""What plugins do that exist in Volcano's tests only, as rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.rules.base import Greedy, Rule
from optsched.rules.ruleset import ActiveRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from optsched.problem.problem import Problem
    from optsched.rules.ledger import Ledger


class Rejecter(Rule):
    """Votes against letting in the PodGroup pgA, and for all others."""

    name = "test-rejecter"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        return _Against([g.name for g in problem.snapshot.gangs].index("pgA"))


class _Against(Greedy):
    def __init__(self, gang: int) -> None:
        self._gang = gang

    def enqueue_vote(self, gang: int) -> int:
        return -1 if gang == self._gang else 1


_KNOWN = {Rejecter.name: Rejecter}


def stand_ins(names: Iterable[str]) -> Iterator[ActiveRule]:
    """The rules that stand for some of those plugins, in the first tier."""
    for name in names:
        assert name in _KNOWN, f"the plugin {name} exists in Volcano's tests only"
        yield ActiveRule(_KNOWN[name](), name, 1)
