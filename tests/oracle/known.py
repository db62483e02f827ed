"""Findings that are known: by class the most that the fixed draws of CI may have, and why.

A class may only leave this list. Draws with other seeds report all of them.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[int, str]] = {
    "dominance admission": (
        4,
        "the solver's plan replaces the pipeline's although that admits more by preempt or reclaim",
    ),
    "dominance least dominant share": (
        1,
        "room is made for gangs that lower a level above admission",
    ),
}
