"""Vector bin packing: its files, and invalid packings."""

from __future__ import annotations

import pytest

from optsched.formats.files.diagnostics import InstanceError
from optsched.study.packing.packing_problem import ItemKind, volume_bound, wrong_with_bins
from optsched.study.packing.vbp import parse_vbp, read_vbp
from tests.support.packing import published
from tests.support.shared import shared

HUGE, CUT = "9" * 5000, "9" * 60 + "…"
TEXT = "2\n10 20\n3\n5 5 2\n4 12 1\n5 5 1\n"


def test_items_alike_are_one_kind(tmp_path) -> None:
    found = parse_vbp(TEXT, "x")
    assert (found.capacity, found.kinds) == ((10, 20), (ItemKind((5, 5), 3), ItemKind((4, 12), 1)))
    assert (found.num_items, volume_bound(found)) == (4, 2)
    (tmp_path / "x.vbp").write_text(TEXT)
    assert read_vbp(tmp_path / "x.vbp") == found


@pytest.mark.parametrize(
    ("bins", "wrong"),
    [
        ([((0, 2),), ((0, 1), (1, 1))], []),
        ([((0, 3),), ((1, 1),)], ["bin 0 holds 15 in dimension 0; its capacity is 10"]),
        ([((0, 2),), ((1, 1),)], ["2 items of type 0 are packed, but there are 3"]),
        (
            [((0, 2),), ((0, 1), (1, 1)), ((2, 1),)],
            ["bin 2 holds item type 2, which does not exist"],
        ),
        (
            [((0, 2),), ((0, 1), (1, 1)), ((1, 0),)],
            ["bin 2 holds item type 1, which does not exist"],
        ),
    ],
)
def test_what_is_no_packing(bins, wrong: list[str]) -> None:
    found = wrong_with_bins(parse_vbp(TEXT, "x"), bins)
    assert len(found) == len(wrong)
    assert [f for f, w in zip(found, wrong, strict=True) if w not in f] == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("2\n", "0\n", "x:1: number of dimensions: 0 is too small: write 1 or more"),
        ("4 12 1", "4 21 1", "x:5: size 1 of row 1: 21 is too large: write 0 to 20"),
        ("4 12 1", "4 x 1", "x:5: size 1 of row 1: x is not a whole number"),
        ("5 5 1\n", "5 5", "x:6: the file ends, but number of items of row 2 is missing"),
        ("5 5 1\n", "5 5 1 1", "x:6: the end of the file: 1 is one number too many"),
        ("10 20", "10 2e1", "x:2: capacity 1: 2e1 is not a whole number: write 0 or more"),
        ("3\n5 5 2\n4 12 1\n5 5 1\n", "0", "x: there is no item"),
        (
            "4 12 1",
            f"4 {HUGE} 1",
            f"x:5: size 1 of row 1: {CUT} is too large: write -{2**63 - 1} to {2**63 - 1}",
        ),
        ("10 20", f"10 {HUGE}", f"x:2: capacity 1: {CUT} is too large: write 0 to {2**63 - 1}"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, told: str) -> None:
    with pytest.raises(InstanceError) as error:
        parse_vbp(TEXT.replace(old, new, 1), "x")
    assert error.value.message == told


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(InstanceError, match="cannot be read"):
        read_vbp(tmp_path / "gone.vbp")


@pytest.mark.parametrize(
    ("family", "number"),
    [pytest.param("Panigrahy", 1620, marks=pytest.mark.nightly), ("Triplet", 240)],
)
def test_the_published_instances_are_whole(family: str, number: int) -> None:
    found = published(shared("traces", "vbp"), family)
    assert len(found) == number
    assert all(case.optimum is None or volume_bound(case.problem) <= case.optimum for case in found)


def test_a_bin_of_no_capacity_is_refused() -> None:
    with pytest.raises(InstanceError, match=r"x:1: capacity 1: 0 is too small: write 1 or more"):
        parse_vbp("2 4 0\n1\n1 0 3\n", "x")
