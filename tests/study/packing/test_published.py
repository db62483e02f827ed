"""Tests of the instances that `python -m bench.packing` reads from a checkout of Vectorpack."""

from __future__ import annotations

import io
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from bench.packing import known, main
from tests.support.packing import published

if TYPE_CHECKING:
    from pathlib import Path

VBP = "1\n4\n2\n3 2\n1 2\n"
"""Two bins of 4 for items of 3, 3, 1 and 1."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder like Vectorpack's repository, with two instances of one set."""
    names = ("class2_4_1_0", "class6_4_1_0")
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / "New_instances.tar.gz", "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"New/{name}.vbp")
            member.size = len(VBP)
            archive.addfile(member, io.BytesIO(VBP.encode()))
    rows = "".join(f"{name}\t2\t2\t2\n" for name in names)
    (tmp_path / "results").mkdir()
    table = tmp_path / "results" / "New_summary_known.csv"
    table.write_text(f"instance_name\tLB\tOPT\tbest_overall\n{rows}")
    return tmp_path


def test_instances_of_one_class_are_chosen(checkout: Path) -> None:
    assert [case.problem.name for case in known("New", checkout, "class6")] == ["class6_4_1_0"]
    assert len(known("New", checkout)) == 2


def test_a_set_that_is_not_there_is_named(checkout: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no Panigrahy_instances\.tar\.gz"):
        published(checkout, "Panigrahy")


def test_the_result_is_printed_by_class(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data", str(checkout), "--family", "New", "--out", str(checkout / "out.csv")]
    monkeypatch.setattr(sys, "argv", ["bench.packing", *given, "--seconds", "5"])
    main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in lines[-2:]] == [
        ["class2", "1", "1", "1"],
        ["class6", "1", "1", "1"],
    ]
