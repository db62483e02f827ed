from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Certificate, Plan
from optsched.formats.plan import read_plan
from optsched.formats.snapshots.instance_files import read_instance
from optsched.kube.scheduler.session_services import KEPT, SnapshotDumps
from optsched.plugins.extension_points import Violation
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SNAPSHOT = cluster([node("n1")], [gang("g", ("w", 2, shape()))], now_ms=1_750_000_000_123)
SNAPSHOT = replace(SNAPSHOT, namespaces={"ns": {"kubernetes.io/metadata.name": "ns"}})
PLAN = Plan((), Certificate((), "greedy", 0.0, "done"))
NAME = "2025-06-15T150640.123000Z"


def test_a_dump_is_an_instance(tmp_path: Path) -> None:
    path = SnapshotDumps(tmp_path / "new").dump(SNAPSHOT, "snapshot")
    assert path == tmp_path / "new" / f"optsched-snapshot-{NAME}.json"
    read = read_instance(path)
    assert read.problems == ()
    assert read.snapshot == SNAPSHOT


def test_no_other_user_reads_dumps(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    dumps = SnapshotDumps(folder)
    dumps.violated(SNAPSHOT, PLAN, [])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_dump_follows_no_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / f"optsched-snapshot-{NAME}.json").symlink_to(target)
    assert SnapshotDumps(tmp_path).dump(SNAPSHOT, "snapshot") is None
    assert target.read_text() == "mine"
    assert "snapshot not dumped" in caplog.text


def test_a_broken_plan_lies_beside_its_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    violation = Violation("gang", "ns/g", "one of two is placed")
    kept = SnapshotDumps(tmp_path).violated(SNAPSHOT, PLAN, [violation])
    assert kept == str(tmp_path / f"optsched-violation-{NAME}.json")
    plan, errors = read_plan((tmp_path / f"optsched-violation-{NAME}.plan").read_text())
    assert errors == ()
    assert plan is not None
    assert str(violation) in caplog.text


def test_the_oldest_of_a_sort_go_first(tmp_path: Path) -> None:
    dumps = SnapshotDumps(tmp_path)
    dumps.dump(SNAPSHOT, "error")
    for second in range(KEPT + 2):
        later = replace(SNAPSHOT, taken_ms=SNAPSHOT.taken_ms + 1000 * second)
        dumps.violated(later, PLAN, [])
    names = sorted(path.name for path in tmp_path.glob("optsched-violation-*.json"))
    assert len(names) == KEPT
    assert names[0] == "optsched-violation-2025-06-15T150642.123000Z.json"
    assert len(list(tmp_path.glob("*.plan"))) == KEPT
    assert len(list(tmp_path.glob("optsched-error-*.json"))) == 1


def test_a_folder_that_can_not_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    dumps = SnapshotDumps(tmp_path / "file")
    assert dumps.dump(SNAPSHOT, "snapshot") is None
    assert dumps.violated(SNAPSHOT, PLAN, []) == ""
    assert "snapshot not dumped" in caplog.text
