"""Tests of the output, files and exit codes of `optsched solve` for vector bin packing."""

from __future__ import annotations

import json
import tarfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from optsched.cli.main import main
from optsched.cli.offline import packing_command as pack
from optsched.study.packing.solve_packing import quick_packing
from tests.support.disk import fill_for
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from click.testing import Result

EASY = "2\n10 10\n3\n5 5 2\n4 6 1\n5 4 3\n"
HARD = "2\n10 10\n5\n6 3 1\n4 7 2\n3 3 4\n7 2 1\n2 8 2\n"
NOWHERE = "1\n8\n2\n9 1\n-5 1\n"


def solve(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["solve", *map(str, arguments)])


def written(folder: Path, **texts: str) -> list[Path]:
    """Write instances to files and return their paths."""
    files = [folder / f"{name}.vbp" for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text)
    return files


def is_packing(text: str, bins: Sequence[Sequence[int]]) -> bool:
    """Return whether the bins hold every item of a file once and respect every capacity."""
    lines = [list(map(int, line.split())) for line in text.splitlines()]
    capacity, rows = lines[1], lines[3:]
    number = Counter({i: row[-1] for i, row in enumerate(rows) if row[-1]})
    sums = [[sum(rows[i][d] for i in one) for d in range(len(capacity))] for one in bins]
    fit = all(s <= c for total in sums for s, c in zip(total, capacity, strict=True))
    return fit and Counter(i for one in bins for i in one) == number


def test_a_table_of_several(tmp_path: Path) -> None:
    result = solve(*written(tmp_path, easy=EASY, hard=HARD), "--time-limit", 20)
    assert result.exit_code == 0
    head, easy, hard = result.stdout.splitlines()
    assert head.split()[:4] == ["instance", "items", "bins", "bound"]
    assert easy.split()[:7] == ["easy", "6", "3", "≥", "3", "0", "greedy"]
    assert hard.split()[:6] == ["hard", "10", "5", "≥", "5", "0"]
    assert hard.endswith("the bound is met")


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_packing_as_a_file(tmp_path: Path, ending: str) -> None:
    files, out = written(tmp_path, easy=EASY, hard=HARD), tmp_path / f"bins.{ending}"
    result = solve(*files, "--time-limit", 20, "--out", out, "-o", ending)
    assert result.exit_code == 0
    assert result.stdout == out.read_text()
    found: dict[str, Any] = yaml.load(out.read_text(), yaml.CSafeLoader)
    assert found["kind"] == "PackingList"
    for document, text in zip(found["items"], (EASY, HARD), strict=True):
        assert is_packing(text, document["bins"])
        assert document["result"]["proved"]
        assert document["result"]["bins"] == len(document["bins"])
        assert document["made"]["timeLimitSeconds"] == 20


def counted(document: dict[str, Any]) -> list[list[int]]:
    """Return the bins of a document, computed from its distinct bins."""
    return [
        [item["row"] for item in each["items"] for _ in range(item["number"])]
        for each in document["distinctBins"]
        for _ in range(each["copies"])
    ]


@pytest.mark.parametrize("text", [EASY, HARD, "1\n10\n4\n3 5\n4 2\n3 4\n3 1\n"])
def test_distinct_bins_are_the_same_packing(tmp_path: Path, text: str) -> None:
    """Rows of equal sizes share bins; a copied bin may take its items from several rows."""
    (file,) = written(tmp_path, one=text)
    document = json.loads(solve(file, "-o", "json", "--time-limit", 20).stdout)
    assert counted(document) == document["bins"]
    assert is_packing(text, document["bins"])


@pytest.mark.parametrize("number", [5_000_000, 10**12])
def test_millions_of_items_are_written_as_counts(tmp_path: Path, number: int) -> None:
    files = written(tmp_path, many=f"2\n100 100\n3\n31 5 {number}\n7 42 {number}\n31 5 3\n")
    out, began = tmp_path / "bins.json", time.process_time()
    result = solve(*files, "--time-limit", 1, "--out", out)
    assert (result.exit_code, time.process_time() - began < 5) == (0, True)
    document = json.loads(out.read_text())
    assert len(out.read_text()) < 10_000
    assert "bins" not in document
    held: Counter[int] = Counter()
    for each in document["distinctBins"]:
        for item in each["items"]:
            held[item["row"]] += item["number"] * each["copies"]
    assert held == {0: number, 1: number, 2: 3}
    assert document["result"]["bins"] == sum(each["copies"] for each in document["distinctBins"])


def test_one_alone_is_no_list(tmp_path: Path) -> None:
    (file,) = written(tmp_path, hard=HARD)
    found = json.loads(solve(file, "-o", "json").stdout)
    assert (found["kind"], found["instance"]["items"]) == ("Packing", 10)


def test_files_of_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "all.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        for file in written(tmp_path, b=HARD, a=EASY, other=EASY):
            opened.add(file, f"in/{file.name}")
    names = lambda *files: [line.split()[0] for line in solve(*files).stdout.splitlines()[1:]]  # noqa: E731
    assert names(archive) == ["a", "b", "other"]
    assert names(f"{archive}/other.vbp", f"{archive}/[ab]*") == ["other", "a", "b"]
    gone = solve(f"{archive}/in/c.vbp")
    assert gone.exit_code == 2
    assert "there is no .vbp file in/c.vbp in this archive" in gone.stderr


def test_every_bad_file_is_told_with_its_line(tmp_path: Path) -> None:
    bad = {"bad": EASY.replace("4 6 1", "4 16 1").replace("5 5 2", "5 11 2"), "short": EASY[:-2]}
    result = solve(*written(tmp_path, **bad, good=EASY), tmp_path / "gone.vbp")
    assert (result.exit_code, result.stdout) == (2, "")
    told = result.stderr.replace(f"{tmp_path}/", "").splitlines()
    assert told[:3] == [
        "bad.vbp:4: size 1 of row 0: 11 is too large: write 0 to 10",
        "bad.vbp:5: size 1 of row 1: 16 is too large: write 0 to 10",
        "short.vbp:6: the file ends, but number of items of row 2 is missing",
    ]
    assert told[3].startswith("gone.vbp: cannot be read")


def test_what_has_no_packing(tmp_path: Path) -> None:
    result = solve(*written(tmp_path, nowhere=NOWHERE, easy=EASY))
    assert result.exit_code == 3
    assert "nowhere: an item of (9,) does not fit into an empty bin" in result.stderr
    assert result.stdout.splitlines()[1].startswith("easy ")


def test_a_file_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = solve(*written(tmp_path, easy=EASY), "--out", tmp_path / "none" / "bins.json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "bins.json: cannot be written: No such file or directory" in refused.stderr
    out = tmp_path / "bins.json"
    out.write_text("of before")
    fill_for(monkeypatch, out.name)
    result = solve(*written(tmp_path, easy=EASY), "--out", out)
    assert result.exit_code == 4
    assert "cannot be written: No space left on device; the previous file" in result.stderr
    assert result.stdout.splitlines()[1].startswith("easy ")
    assert out.read_text() == "of before"


def test_ctrl_c_gives_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(worker: object, work: Any) -> Iterator[object]:
        yield quick_packing(work.problem)
        raise KeyboardInterrupt

    monkeypatch.setattr(pack, "packings", interrupted)
    out = tmp_path / "bins.json"
    result = solve(*written(tmp_path, hard=HARD, easy=EASY), "--out", out)
    assert result.exit_code == 130
    assert result.stdout.splitlines()[1].endswith("stopped by hand")
    found = json.loads(out.read_text())
    assert is_packing(HARD, found["bins"])
    assert found["result"]["stopped"] == "stopped by hand"


def test_options_of_clusters_are_not_for_packings(tmp_path: Path) -> None:
    result = solve(*written(tmp_path, easy=EASY), "--model", "volcano-default")
    assert result.exit_code == 2
    (told,) = result.stderr.splitlines()
    assert told.startswith("Error: --model is only for clusters: ")
    assert told.endswith("takes --out, --output, --seed, --time-limit")
    result = solve(*written(tmp_path, easy=EASY), "--modl", "x")
    assert result.stderr.startswith("Error: No such option '--modl'")


@pytest.mark.parametrize("name", ["page.txt", "easy.vbp"])
def test_outputs_of_clusters_may_have_names_of_other_formats(tmp_path: Path, name: str) -> None:
    instance = ROOT / "instances" / "examples" / "packing.yaml"
    result = solve(instance, "--solver", "none", "--report", tmp_path / name)
    assert (result.exit_code, result.stderr) == (0, f"wrote {tmp_path / name}\n")
    assert "whole-cluster" in (tmp_path / name).read_text()
