"""Extract commands with output, and Python code, from documentation pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_VARYING = (
    # A warning of kubectl, which watches again.
    (re.compile(r"^I\d{4} .*watch ended with error.*$"), ""),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:#"),
    (re.compile(r"\S*/\.?cache/optsched|\S*/pages\d*"), "~/.cache/optsched"),
    (re.compile(r"\b\d+(\.\d+)? ?m?s\b"), "# s"),
    (re.compile(r" {2,}\d{3,}$"), "  #"),
    (re.compile(r" {2,}"), "  "),
)


@dataclass(frozen=True)
class Example:
    """A command of a page, and its output on the page."""

    command: str
    output: str


def fences(page: Path, kind: str) -> list[str]:
    """Return the fenced blocks of one language on a page."""
    return [text for k, text in _FENCE.findall(page.read_text("utf-8")) if k == kind]


def links(page: Path) -> Iterator[str]:
    """Return the files to which a page links."""
    without_code = _FENCE.sub("", page.read_text("utf-8"))
    return (link for link in _LINK.findall(without_code) if "://" not in link)


def examples(block: str) -> list[Example]:
    """Return the commands in a block, including continuation lines and here-documents."""
    found = []
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        lines = part.split("\n")
        last = next(i for i, line in enumerate(lines) if not line.endswith("\\"))
        if lines[last].endswith("<<EOF"):
            last = lines.index("EOF")
        command, output = lines[: last + 1], lines[last + 1 :]
        found.append(Example("\n".join(command), "\n".join(output).strip("\n")))
    return found


def settled(text: str) -> list[str]:
    """Return the lines of an output, without parts that vary between runs.

    A line of … stands for any lines.
    """
    for pattern, instead in _VARYING:
        text = "\n".join(pattern.sub(instead, line.rstrip()) for line in text.split("\n"))
    return [line for line in text.strip("\n").split("\n") if line]


def agrees(printed: str, shown: str) -> bool:
    """Return whether an output agrees with the output on the page."""
    pattern = "".join(
        "(?:.*\n)*" if line == "…" else f"{re.escape(line)}\n" for line in settled(shown)
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in settled(printed))) is not None


_MARK = "===== end of a command ====="


def run(commands: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the outputs of commands that one shell runs sequentially in the project's root.

    Raises AssertionError if the shell ends before the last command.
    """
    script = "".join(f"{command}\necho '{_MARK}'\n" for command in commands)
    given = {**os.environ, "TERM": "dumb", **environment}
    env = {**given, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    outputs = done.stdout.split(f"{_MARK}\n")
    assert len(outputs) == len(commands) + 1, done.stdout
    return outputs[:-1]
