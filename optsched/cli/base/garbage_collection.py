"""Thresholds of Python's garbage collector for sessions.

Sessions make many small objects that live as long as the session. With Python's own thresholds the
collector goes through all of them again and again: a fifth of the time of a large session.
"""

from __future__ import annotations

import gc

THRESHOLDS = (200_000, 20, 100)
SERVING = (50_000, 10, 2)
"""Of a process that runs for months: what sessions leave behind is freed in time.

With the thresholds above a full collection never comes.
"""


def collect_less() -> None:
    """Set the collector's thresholds for a single session."""
    gc.set_threshold(*THRESHOLDS)


def collect_while_serving() -> None:
    """Set the collector's thresholds for a long-running process, so that memory stays flat."""
    gc.set_threshold(*SERVING)


def keep_for_good() -> None:
    """Exclude all existing objects from collection, then set the thresholds for sessions."""
    gc.collect()
    gc.freeze()
    collect_less()
