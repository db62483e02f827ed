"""Findings that are known: by class the most that the fixed draws of CI may have, and why.

A class may only leave this list. Draws with other seeds report all of them.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[int, str]] = {
    "dominance admission": (2, "reclaim admits more with solver: none"),
    "chain refused pod-affinity task": (
        2,
        "a pod that waits comes next to a pod that a nominated pod keeps off",
    ),
    "one more node fair share": (1, "topology-first: the search ends before it on that level"),
}
