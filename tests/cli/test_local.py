"""Tests of the messages of `optsched local`; tests/e2e/test_local.py starts a control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from optsched.cli.local_command import local

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("command", ["down", "kubeconfig", "status"])
def test_without_a_plane_they_say_so(tmp_path: Path, command: str) -> None:
    result = CliRunner().invoke(local, [command, "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output == f"Error: no control plane was ever started in {tmp_path}\n"


def test_it_lives_in_the_cache_by_default(tmp_path: Path) -> None:
    result = CliRunner(env={"OPTSCHED_CACHE": str(tmp_path)}).invoke(local, ["status"])
    assert f"started in {tmp_path / 'local'}" in result.output


def test_without_binaries_up_says_what_would_help(tmp_path: Path) -> None:
    env = {"PATH": "", "KUBEBUILDER_ASSETS": "", "OPTSCHED_CACHE": str(tmp_path)}
    result = CliRunner(env=env).invoke(local, ["up"])
    assert result.exit_code == 1
    assert "Any one of these helps:" in result.output


@pytest.mark.parametrize("option", ["--nodes", "--gpu"])
def test_counts_are_not_negative(option: str) -> None:
    result = CliRunner().invoke(local, ["up", option, "-1"])
    assert result.exit_code == 2
    assert option in result.output
