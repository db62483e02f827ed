"""The output and exit codes of the gang demo on the emulated cluster."""

from __future__ import annotations

import re

from click.testing import CliRunner

from optsched.cli.demo_command import demo

_STUCK = re.compile(r"deadlock: (\d) jobs hold (\d+)/16 CPU, but no job runs all 6 pods")


def test_gangs_finish_and_single_tasks_hold_each_other_up() -> None:
    shown = CliRunner().invoke(demo, ["--emulated"])
    assert shown.exit_code == 0, shown.output
    (line,) = re.findall(r"^ +with gangs (.+)$", shown.output, re.M)
    assert re.findall(r"(\d) of (\d)", line) == [("1", "1"), ("2", "2"), ("5", "5")]
    assert _STUCK.findall(shown.output) == [("2", "16"), ("5", "16")]
