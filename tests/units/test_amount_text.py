from __future__ import annotations

import pytest

from optsched.units import amount_text, count_noun


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1500m cpu"),
        ("cpu", 2000, "2 cpu"),
        ("cpu", 0, "0 cpu"),
        ("memory", 2 << 30, "2Gi memory"),
        ("memory", 1, "1 memory"),
        ("nvidia.com/gpu", 3, "3 nvidia.com/gpu"),
        ("pods", 12, "12 pods"),
    ],
)
def test_amounts_are_told_with_their_resource(resource: str, amount: int, text: str) -> None:
    assert amount_text(resource, amount) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1000, "1000 nodes")]
)
def test_one_is_singular(number: int, text: str) -> None:
    assert count_noun(number, "node") == text
