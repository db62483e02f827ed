"""Text of durations."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """Return a duration with about three digits: 0.9s, 12.5s, 1h30m, 3d04h."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"
