"""Verify a plan against every hard rule; the verifier shares no code with the solvers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched.plugins.verification.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import Violation
    from optsched.plugins.ruleset import RuleSet


def verify_actions(
    snapshot: Snapshot, actions: Sequence[Action], rules: RuleSet
) -> list[Violation]:
    """Return all violations of rules that the actions of a plan cause.

    If a plan nominates tasks, the rules in `RuleSet.predicates` must also hold after the nominated
    tasks have started. If a plan moves tasks, all hard rules must also hold after the moved tasks
    have started.
    """
    world = World(snapshot, actions)
    found = [violation for rule in rules.hard for violation in rule.verify(world.after)]
    last = world.after.once_settled
    if last is not world.after:
        judging = rules.hard if world.moves else rules.predicates
        found += [v for rule in judging for v in rule.verify(last) if v not in found]
    if world.evictions:
        found += [v for rule in rules.guarding for v in rule.verify_evictions(world)]
    return found
