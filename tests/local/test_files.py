from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from optsched.local.assets import cache_directory, locked, shipped
from optsched.local.plane import write_private


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"OPTSCHED_CACHE": "/o", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/o"),
        ({"OPTSCHED_CACHE": "", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/optsched"),
        ({"HOME": "/h"}, "/h/.cache/optsched"),
    ],
)
def test_the_cache_is_where_the_environment_says(env: dict[str, str], expected: str) -> None:
    assert cache_directory(env) == Path(expected)


def test_what_the_plane_needs_is_shipped() -> None:
    assert shipped("local", "stages.yaml").is_file()
    for module in ("kubernetes", "etcd", "kwok"):
        assert shipped("local", module, "go.mod").is_file()
        assert shipped("local", module, "go.sum").is_file()


def test_a_private_file_replaces_a_public_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    waiting, order = threading.Event(), []

    def second() -> None:
        with locked(path, waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(path, lambda: order.append("waited")):
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
