"""Errors about invalid files name the file and the mistake, and show no Python terms."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner

from optsched.cli.main import main
from tests.cli.test_exit_codes import JOB_FILE, KUBECONFIG
from tests.cli.test_inputs import CONTENTS, FAILURES, PACKING, SMALL

if TYPE_CHECKING:
    from pathlib import Path

PYTHON: Final = re.compile(
    r"Errno|object is not|has no attribute|codec can|Expecting|Traceback|NoneType|\bdict|indices"
    r"|recursion|unhandled|\(char |utf-8-sig|invalid literal|KeyError|TypeError|ValueError|\bstr\b"
    r"|Unable to load PEM|https?://cryptography"
)
MODEL: Final = ("--model", "volcano-compatible")
READERS: Final = {
    "gpu-hours": ("result.json", ("gpu-hours", "{folder}")),
    "checkpoint": (
        "checkpoint.json",
        ("simulate", FAILURES, *SMALL, "--out", "{folder}", "--resume"),
    ),
    "result": ("a.json", ("solve", PACKING, *SMALL, "--resume", "{file}")),
    "model": ("a.yaml", ("solve", PACKING, "--model", "{file}")),
    "openb": ("a.csv", ("solve", "{file}", *SMALL)),
    "snapshot": ("a.yaml", ("what-if", "-f", "{job}", "--snapshot", "{file}", *MODEL)),
    "resource groups": ("a.conf", ("webhook", "--admission-conf", "{file}")),
    "configuration": ("a.conf", ("scheduler", "--config", "{file}", "--kubeconfig", "{good}")),
    "certificate": (
        "a.pem",
        (
            *("webhook", "--kubeconfig", "{good}", "--listen-address", "127.0.0.1:0"),
            *("--tls-cert-file", "{file}", "--tls-private-key-file", "{file}"),
        ),
    ),
    **{
        name: ("a.csv", ("simulate", "{file}", "--format", name, "--nodes", PACKING, *SMALL))
        for name in ("acme", "gavel", "helios", "openb", "pai", "philly")
    },
    "nodes": ("a.yaml", ("simulate", "{job}", "--format", "acme", "--nodes", "{file}", *SMALL)),
}
"""Files that commands read, and how."""

ODD: Final = ("binary", "a number", "JSON list", "deep", "BOM alone", "documents")
TAKEN: Final = {("resource groups", "BOM alone"), ("philly", "JSON list")}
"""A file without anything is one without groups; jobs of a list are reported one by one."""


@pytest.mark.parametrize(
    ("name", "content"), [(n, c) for n in READERS for c in ODD if (n, c) not in TAKEN]
)
def test_messages_are_about_the_file(tmp_path: Path, name: str, content: str) -> None:
    file, words = READERS[name]
    folder = tmp_path / "given"
    folder.mkdir()
    path = folder / file
    path.write_bytes(CONTENTS[content])
    (tmp_path / "job.yaml").write_text(JOB_FILE)
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(port=9))
    places = {
        "file": path,
        "folder": folder,
        "job": tmp_path / "job.yaml",
        "good": tmp_path / "kubeconfig",
    }
    arguments = [str(word).format(**places) for word in words]
    result = CliRunner().invoke(main, arguments, env={"KUBECONFIG": str(tmp_path / "gone")})
    assert isinstance(result.exception, SystemExit), (result.exception, result.output)
    assert result.exit_code in (1, 2)
    said = result.stderr.replace(str(tmp_path), "")
    found = PYTHON.search(said)
    assert found is None, said
    assert ("given" if name == "openb" else file) in said, said
    assert path.read_bytes() == CONTENTS[content]
