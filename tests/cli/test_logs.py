"""Tests of the log formats."""

from __future__ import annotations

import json
import logging

import click
import pytest
from click.testing import CliRunner

from optsched.cli.services.service_options import logging_options, set_up_logging


@pytest.fixture
def log():
    """Yield the logger of the project without handlers, and restore its handlers at the end."""
    logger = logging.getLogger("optsched")
    before, level = list(logger.handlers), logger.level
    logger.handlers.clear()
    yield logger
    logger.handlers[:] = before
    logger.setLevel(level)


def test_json_has_an_object_a_line(log: logging.Logger, capsys: pytest.CaptureFixture[str]):
    set_up_logging(0, "json")
    try:
        raise ValueError("a\nb")
    except ValueError:
        log.getChild("kube").exception("pod %s: failed\nagain", "ns/a")
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found.keys() == {"time", "level", "logger", "message", "error"}
    assert (found["level"], found["logger"]) == ("ERROR", "optsched.kube")
    assert found["message"] == "pod ns/a: failed\nagain"
    assert "ValueError: a\nb" in found["error"]


@pytest.mark.parametrize(("verbosity", "level"), [(0, "INFO"), (3, "INFO"), (4, "DEBUG")])
def test_steps_are_logged_from_four_on(log: logging.Logger, verbosity: int, level: str):
    set_up_logging(verbosity)
    assert logging.getLevelName(log.level) == level


def test_other_formats_are_refused(log: logging.Logger):
    @click.command()
    @logging_options
    def process() -> None:
        click.echo(logging.getLevelName(log.level))

    assert CliRunner().invoke(process, ["-v", "4"]).output == "DEBUG\n"
    refused = CliRunner().invoke(process, ["--log-format", "xml"])
    assert refused.exit_code == 2
    assert "'xml' is not one of 'text', 'json'" in refused.output
