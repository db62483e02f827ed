"""When a plugin last had pods evicted that it wanted elsewhere, as PodGroups of such pods say.

A scheduler that starts again knows by it how much of a plugin's period has passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.formats.codec.snapshot_annotations import time_text
from optsched.units import TimestampError, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHUFFLED_BY: Final = "optsched.io/shuffled-by-"
"""An annotation of PodGroups for each plugin: when it last had pods of theirs evicted."""


def shuffle_annotation(plugin: str, now_ms: int) -> dict[str, str]:
    """The annotation of a PodGroup of which pods are evicted now."""
    return {f"{SHUFFLED_BY}{plugin}": time_text(now_ms)}


def last_shuffle_ms(annotations: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """The last time by plugin, of the annotations of PodGroups; what is no time says nothing."""
    found: dict[str, int] = {}
    for notes in annotations:
        for key, text in notes.items():
            if key.startswith(SHUFFLED_BY):
                plugin = key.removeprefix(SHUFFLED_BY)
                found[plugin] = max(found.get(plugin, 0), _time_ms(text))
    return found


def _time_ms(text: str) -> int:
    try:
        return parse_time_ms(text)
    except TimestampError:
        return 0
