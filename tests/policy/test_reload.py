from __future__ import annotations

from pathlib import Path

import pytest

from optsched.policy import PolicyError, PolicyWatch, Rejected, Reloaded, Unchanged

GOOD = "actions: allocate\ntiers: [{plugins: [{name: gang}]}]\n"
BETTER = "actions: allocate\ntiers: [{plugins: [{name: gang}, {name: drf}]}]\n"
BAD = "actions: alocate\ntiers: [{plugins: [{name: gang}]}]\n"
WORSE = "actions: ["


class Disk:
    """A file that changes; `None` means that it is missing."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def read(self, path: Path) -> str:
        assert path == Path("policy.conf")
        if self.text is None:
            raise FileNotFoundError(2, "No such file or directory")
        return self.text


def watch(text: str) -> tuple[Disk, PolicyWatch]:
    disk = Disk(text)
    return disk, PolicyWatch("policy.conf", disk.read)


def rules(policy_watch: PolicyWatch) -> list[str]:
    return [a.rule.name for a in policy_watch.policy.rules.active]


def test_what_is_the_same_is_not_loaded_again() -> None:
    disk, seen = watch(GOOD)
    before = seen.policy
    assert seen.poll() == Unchanged()
    disk.text = str(GOOD)
    assert seen.poll() == Unchanged()
    assert seen.policy is before


def test_what_has_changed_comes_into_force() -> None:
    disk, seen = watch(GOOD)
    disk.text = BETTER
    change = seen.poll()
    assert isinstance(change, Reloaded)
    assert change.policy is seen.policy
    assert rules(seen) == ["gang", "sub-groups", "drf"]
    assert seen.poll() == Unchanged()


def test_what_is_wrong_is_told_once_and_the_last_good_policy_stays() -> None:
    disk, seen = watch(BETTER)
    good = seen.policy
    for text in (BAD, WORSE):
        disk.text = text
        change = seen.poll()
        assert isinstance(change, Rejected)
        assert change.problems[0].file == "policy.conf"
        assert [seen.poll() for _ in range(3)] == [Unchanged()] * 3
    assert seen.policy is good
    disk.text = BAD
    # The content changed in between, so the error is reported again.
    assert isinstance(seen.poll(), Rejected)


def test_a_file_that_vanishes_is_told_once() -> None:
    disk, seen = watch(GOOD)
    good = seen.policy
    disk.text = None
    change = seen.poll()
    assert isinstance(change, Rejected)
    assert "there is no such model or file" in str(change.problems[0])
    assert seen.poll() == Unchanged()
    assert seen.policy is good


@pytest.mark.parametrize("trouble", [None, BAD])
def test_what_is_good_again_is_told(trouble: str | None) -> None:
    disk, seen = watch(GOOD)
    disk.text = trouble
    seen.poll()
    disk.text = GOOD
    assert isinstance(seen.poll(), Reloaded)
    assert seen.poll() == Unchanged()


def test_a_configmap_that_swaps_its_links_is_noticed(tmp_path: Path) -> None:
    for name, text in (("v1", GOOD), ("v2", BETTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.conf").write_text(text)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "policy.conf").symlink_to("..data/policy.conf")
    seen = PolicyWatch(str(tmp_path / "policy.conf"), Path.read_text)
    (tmp_path / "..tmp").symlink_to("v2")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    assert isinstance(seen.poll(), Reloaded)
    assert rules(seen) == ["gang", "sub-groups", "drf"]


def test_shipped_models_never_change() -> None:
    seen = PolicyWatch("max-throughput", Disk(None).read)
    assert seen.policy.name == "max-throughput"
    assert seen.poll() == Unchanged()


def test_there_has_to_be_a_good_policy_at_first() -> None:
    with pytest.raises(PolicyError):
        watch(BAD)
