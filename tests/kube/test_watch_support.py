"""Tests on a real server read a watch only once it is current."""

from __future__ import annotations

import pytest

from tests.support.api import is_current, until


def listed(at: int, **versions: int) -> dict[str, object]:
    """Return a list response with the given versions by UID."""
    items = [
        {"metadata": {"uid": uid, "resourceVersion": str(version)}}
        for uid, version in versions.items()
    ]
    return {"metadata": {"resourceVersion": str(at)}, "items": items}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"a": (5, True), "b": (7, True)}, True),
        ({"a": (5, True)}, False),
        ({"a": (4, True), "b": (7, True)}, False),
        ({"a": (9, True), "b": (7, True)}, True),
        ({"a": (5, True), "b": (11, False)}, True),
        ({"a": (5, True), "b": (7, True), "gone": (3, True)}, False),
        ({"a": (5, True), "b": (7, True), "gone": (8, False)}, True),
        ({"a": (5, True), "b": (7, True), "later": (12, True)}, True),
    ],
    ids=[
        "same",
        "not created yet",
        "not changed yet",
        "changed since",
        "deleted since",
        "not deleted yet",
        "deleted",
        "created since",
    ],
)
def test_a_watch_is_current_once_it_has_told_of_a_list(
    known: dict[str, tuple[int, bool]], expected: bool
) -> None:
    assert is_current(listed(10, a=5, b=7), known) is expected


def test_what_is_missing_at_first_is_waited_for() -> None:
    statuses = iter([{}, {"phase": ""}, {"phase": "Running"}])
    assert until(lambda: next(statuses)["phase"], "it runs") == "Running"


def test_what_stays_missing_is_named() -> None:
    with pytest.raises(AssertionError, match="it runs; last: KeyError"):
        until(lambda: {}["phase"], "it runs", 0.0)
