"""Findings that are known: by class the most that the fixed draws of CI may have, and why.

A class may only leave this list. Draws with other seeds report all of them.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[int, str]] = {
    "dominance admission": (2, "reclaim admits more with solver: none"),
    "one more node fair share": (1, "topology-first: the search ends before it on that level"),
}
