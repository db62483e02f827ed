from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from optsched.local import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# `print` may write the word and its line end separately (PYTHONUNBUFFERED). The test reads only the
# word, so a second write would end the process.
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"ready")
signal.pause()
"""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[list[str]]:
    """Yield a command that no other process runs, and end its processes afterwards."""
    command = [sys.executable, "-c", f"{STUBBORN}# {tmp_path}"]
    yield command
    for pid in processes.find_running({"it": command}).values():
        processes.end(pid, command, grace_s=0)


def spawn(command: list[str], log: Path) -> int:
    """Start a command, wait until it prints `ready`, and return its PID."""
    os.mkfifo(log)
    reader = os.open(log, os.O_RDWR)
    try:
        pid = processes.spawn(command, log=log, environment=os.environ)
        assert os.read(reader, 5) == b"ready"
    finally:
        os.close(reader)
    return pid


def test_names_have_the_order_of_the_commands(command: list[str], tmp_path: Path) -> None:
    other = [*command, "--second"]
    spawn(command, tmp_path / "log")
    pid = spawn(other, tmp_path / "other")
    forwards = processes.find_running({"b": command, "a": other})
    backwards = processes.find_running({"a": other, "b": command})
    processes.end(pid, other, grace_s=0)
    assert (list(forwards), list(backwards)) == (["b", "a"], ["a", "b"])


def test_it_is_found_by_its_command_line(command: list[str], tmp_path: Path) -> None:
    other = [*command, "--not-this"]
    assert processes.find_running({"it": command}) == {}
    pid = spawn(command, tmp_path / "log")
    assert processes.find_running({"it": command, "other": other}) == {"it": pid}
    assert processes.is_running(pid, command)
    assert not processes.is_running(pid, other)
    assert not processes.has_ended(pid)


def test_whoever_will_not_end_is_killed(command: list[str], tmp_path: Path) -> None:
    pid = spawn(command, tmp_path / "log")
    processes.end(pid, command, grace_s=0.1)
    assert processes.find_running({"it": command}) == {}
    assert processes.has_ended(pid)


def test_whoever_ends_when_asked_has_time_to(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"{STUBBORN.replace('SIG_IGN', 'SIG_DFL')}# {tmp_path}"]
    pid = spawn(command, tmp_path / "log")
    processes.end(pid, command, grace_s=60)
    assert processes.find_running({"it": command}) == {}


def test_a_stranger_with_the_same_id_is_left_alone(command: list[str], tmp_path: Path) -> None:
    pid = spawn(command, tmp_path / "log")
    processes.end(pid, ["something", "else"], grace_s=0)
    assert processes.is_running(pid, command)


def test_ending_what_has_ended_is_fine() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    processes.end(process.pid, ["true"], grace_s=1)


def test_output_is_appended_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    pid = processes.spawn(["/bin/sh", "-c", "echo out; echo err >&2"], log=log, environment={})
    os.waitpid(pid, 0)
    assert log.read_text() == "before\nout\nerr\n"
