"""Run `optsched` command lines on a real cluster."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from optsched.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import click
    from click.testing import Result

    from tests.support.live import Site


class Shell:
    """A user with a current context in the namespace of a site."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.kubeconfig = folder / "user.conf"
        config = json.loads(site.kubeconfig.read_text())
        for context in config["contexts"]:
            context["context"]["namespace"] = site.name
        self.kubeconfig.write_text(json.dumps(config))

    def try_(self, line: str, command: click.Command = main) -> Result:
        """Run a command line, and return its result."""
        environment = {"KUBECONFIG": str(self.kubeconfig)}
        return CliRunner().invoke(command, shlex.split(line), env=environment)

    def __call__(self, line: str, command: click.Command = main) -> str:
        """Return the output of a command that must succeed."""
        result = self.try_(line, command)
        assert result.exit_code == 0, f"{line}: {result.output}"
        return result.stdout

    def json(self, line: str) -> Any:
        """Return the parsed output of a command with `-o json`."""
        return json.loads(self(f"{line} -o json"))

    def ended(self, line: str) -> tuple[int, str]:
        """Return the exit code and the errors of a command in a separate process.

        A command that fails while it follows a watch keeps connections until its process ends.
        """
        process = self.start(line)
        _, errors = process.communicate(timeout=180)
        return process.returncode, errors

    def start(self, line: str) -> subprocess.Popen[str]:
        """Start a command as a separate process."""
        return subprocess.Popen(
            [sys.executable, "-m", "optsched.cli.main", *shlex.split(line)],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
