"""What events on objects say about themselves; their objects are core/v1 Events."""

from __future__ import annotations

from enum import StrEnum


class EventType(StrEnum):
    """Whether somebody should look into it."""

    NORMAL = "Normal"
    WARNING = "Warning"
