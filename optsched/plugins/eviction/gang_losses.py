"""What a gang loses by evictions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from optsched.cluster.topology import sub_group_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.snapshot import Gang
    from optsched.cluster.task import Task


def find_losses(gang: Gang, held: Sequence[Task], left: Sequence[Task]) -> Iterator[str]:
    """Yield what a gang lacks that keeps only some of its tasks."""
    if len(left) < gang.min_member or lacks_role(gang, left):
        yield f"{len(left)} tasks would be left, minMember is {gang.min_member}"
    yield from _find_broken_groups(gang, held, left)


def lacks_role(gang: Gang, left: Sequence[Task]) -> bool:
    """Return whether a gang with some tasks lacks tasks of a role."""
    have = Counter(t.role for t in left)
    return any(have[role] < n for role, n in gang.role_minimums)


def _find_broken_groups(gang: Gang, held: Sequence[Task], left: Sequence[Task]) -> Iterator[str]:
    """Yield sub-groups that lose a part of their size, and policies that lack sub-groups."""
    before = Counter(sub_group_of(gang.sub_groups, t.labels) for t in held)
    after = Counter(sub_group_of(gang.sub_groups, t.labels) for t in left)
    standing = Counter(
        sub_group_of(gang.sub_groups, t.labels) for t in left if t.status.holds_resources
    )
    whole, lost = Counter[int](), Counter[int]()
    for group, number in before.items():
        size = 0 if group is None else gang.sub_groups[group[0]].size
        if group is None or number < size:
            continue
        whole[group[0]] += after[group] >= size
        lost[group[0]] += after[group] < size
        if standing[group] and after[group] < size:
            name = gang.sub_groups[group[0]].name
            yield f"{after[group]} tasks of a group of {name} would be left, its size is {size}"
    for policy, rule in enumerate(gang.sub_groups):
        if lost[policy] and whole[policy] < rule.min_groups:
            yield f"{whole[policy]} groups of {rule.name} would be left, of {rule.min_groups}"
