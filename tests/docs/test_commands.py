"""docs/commands.md is generated from the code, and the help of commands has the same exit codes."""

from __future__ import annotations

import re

import click
import pytest

from optsched.cli.commands import MEANINGS, all_commands, codes_of, commands_page
from tests.support.pages import ROOT

COMMANDS = dict(all_commands())


def test_the_page_is_written_by_the_code() -> None:
    assert (ROOT / "docs" / "commands.md").read_text("utf-8") == commands_page()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_codes(name: str) -> None:
    codes = codes_of(name)
    assert set(codes) <= {code for code, _ in MEANINGS}
    text = " ".join((COMMANDS[name].help or "").split())
    ends = re.search(r"exit code is (.*)", text)
    if ends is not None:
        named = {int(n) for n in re.findall(r"\b\d+\b", ends[1])}
        assert named <= set(codes), f"{name}: its help has other codes"


def test_short_options_mean_one_thing_in_commands_on_files() -> None:
    for name in ("solve", "simulate", "compare", "gpu-hours", "what-if", *_benchmarks()):
        options = {
            o: p for p in COMMANDS[name].params if isinstance(p, click.Option) for o in p.opts
        }
        assert {"-o", "--output"} <= set(options["-o"].opts), name
        if "--solver" in options:
            assert list(options["--solver"].type.choices) == ["cpsat", "none"], name
        if "-n" in options:
            assert "--namespace" in options["-n"].opts, name


def _benchmarks() -> list[str]:
    return [name for name in COMMANDS if name.startswith("solve ")]
