"""Reloads of the resource groups file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from optsched.admission.world import Settings
from optsched.kube.webhook.process import ResourceGroupsFile

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "resourceGroups: [{{resourceGroup: {0}, schedulerName: volcano}}]"
BROKEN = "resourceGroups: [{object: {key: label}}]"


class Mount:
    """A ConfigMap as a kubelet mounts it: a link to a link to the current files."""

    def __init__(self, folder: Path, content: str) -> None:
        self._folder = folder
        self._number = 0
        self.path = folder / "volcano-admission.conf"
        self.swap(content)
        self.path.symlink_to(folder / "..data" / self.path.name)

    def swap(self, content: str) -> None:
        self._number += 1
        version = self._folder / f"..{self._number}"
        version.mkdir()
        (version / self.path.name).write_text(content)
        fresh = self._folder / "..data_tmp"
        fresh.symlink_to(version)
        fresh.replace(self._folder / "..data")


class Followed:
    """A watched file and the results of its reloads."""

    def __init__(self, folder: Path) -> None:
        self.mount = Mount(folder, GOOD.format("a"))
        self.verdicts: list[str] = []
        self.file = ResourceGroupsFile(self.mount.path, Settings(max_queue_depth=3), self._told)

    def _told(self, problem: str) -> None:
        self.verdicts.append(problem)

    def groups(self) -> list[str]:
        self.file.poll()
        assert self.file.settings.max_queue_depth == 3
        return [group.name for group in self.file.settings.resource_groups]


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def test_a_content_that_is_swapped_is_read(followed: Followed) -> None:
    assert followed.groups() == ["a"]
    followed.mount.swap(GOOD.format("b"))
    assert followed.groups() == ["b"]
    assert followed.groups() == ["b"]
    assert followed.verdicts == [""]


def test_a_content_without_a_reading_keeps_the_last_good_one(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.mount.swap(BROKEN)
    assert followed.groups() == followed.groups() == ["a"]
    (problem,) = followed.verdicts
    assert problem.startswith('resourceGroups[0].object.key: "label" is not one of namespace,')
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert problem in told.getMessage()
    followed.mount.swap(GOOD.format("a"))
    assert followed.groups() == ["a"]
    assert followed.verdicts[1:] == [""]


@pytest.mark.parametrize("content", [b"[", b"\xff"])
def test_what_is_no_yaml_keeps_it_too(followed: Followed, content: bytes) -> None:
    followed.mount.path.write_bytes(content)
    assert followed.groups() == ["a"]
    assert len(followed.verdicts) == 1


def test_a_file_that_is_gone_keeps_it_and_may_come_back(followed: Followed) -> None:
    target = followed.mount.path.resolve()
    held = target.read_text()
    target.unlink()
    assert followed.groups() == followed.groups() == ["a"]
    assert len(followed.verdicts) == 1
    target.write_text(held)
    assert followed.groups() == ["a"]
    assert followed.verdicts[-1] == ""


def test_it_has_to_be_good_to_begin_with(tmp_path: Path) -> None:
    path = tmp_path / "conf"
    path.write_text(BROKEN)
    with pytest.raises(ValueError, match="is not one of namespace, annotation"):
        ResourceGroupsFile(path, Settings(), lambda _: None)
    with pytest.raises(FileNotFoundError):
        ResourceGroupsFile(tmp_path / "other", Settings(), lambda _: None)
