"""Commands refuse unreadable files in every argument and option that reads a file.

The tests find commands and their inputs in the command tree, so that they cover new commands.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import pytest
from click.testing import CliRunner

from optsched.cli import legacy
from optsched.cli.base.path_arguments import InputPath, ModelSource, OutputPath, Source, TraceSource
from optsched.cli.commands import all_commands, codes_of
from optsched.cli.main import main
from optsched.kube.serving.certificates import Credentials, renew_credentials
from tests.cli.test_exit_codes import ACTS, FILES, KUBECONFIG
from tests.cli.test_reassign import MODEL
from tests.support.file_permissions import permissions_apply

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from click.testing import Result

OUTPUTS: Final = {"--out", "--result", "--report", "--record", "--dump-dir", "--dir"}
TEXTS: Final = {"--kubeconfig", "--filename", "--config", "--plugins-dir", "--model", "files"}
"""Options of plain text that name a file, or may name one."""

FREE_PORT: Final = "127.0.0.1:0"
ADDRESSES: Final = ("--listen-address", FREE_PORT)
METRICS: Final = ("--metrics-address", FREE_PORT)

SUFFIXES: Final = {"solve FILE.vbp": ".vbp", "solve model_*.txt": ".txt"}
COMPANIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "--dask-ca": ("--dask", "tls://127.0.0.1:1", "--dask-cert", "{other}", "--dask-key", "{other}"),
    "--dask-cert": ("--dask", "tls://127.0.0.1:1", "--dask-ca", "{other}", "--dask-key", "{other}"),
    "--dask-key": ("--dask", "tls://127.0.0.1:1", "--dask-ca", "{other}", "--dask-cert", "{other}"),
    "--tls-cert-file": ("--tls-private-key-file", "{key}"),
    "--tls-private-key-file": ("--tls-cert-file", "{certificate}"),
    "--ca-cert-file": ("--tls-private-key-file", "{key}", "--tls-cert-file", "{certificate}"),
    "--metrics-tls-cert-file": ("--metrics-tls-private-key-file", "{key}", *METRICS),
    "--metrics-tls-private-key-file": ("--metrics-tls-cert-file", "{certificate}", *METRICS),
}
"""What an option needs beside it."""

PORTS: Final[Mapping[str, tuple[str, ...]]] = {
    "controllers": ADDRESSES,
    "scheduler": ADDRESSES,
    "webhook": (*ADDRESSES, "--port", "0"),
}
"""Services take any port that is free: other tests run beside these."""


class Input(NamedTuple):
    """An argument or option of a command that reads a file."""

    command: str
    option: str


def find_inputs() -> Iterator[Input]:
    for name, command in all_commands():
        for param in command.params:
            opts = [*param.opts, *param.secondary_opts]
            if _is_input(param, opts):
                option = next((o for o in opts if o.startswith("--")), opts[0])
                yield Input(name, option)


def _is_input(param: click.Parameter, opts: list[str]) -> bool:
    if OUTPUTS & set(opts):
        return False
    return bool(TEXTS & set(opts)) or isinstance(
        param.type, (click.Path, click.File, Source, TraceSource, ModelSource)
    )


ACME: Final = """\
job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration
1,a,1,1,1,COMPLETED,2023-03-01 00:00:00+08:00,2023-03-01 00:00:10+08:00,2023-03-01 00:01:10+08:00,60
"""
BOUND_S: Final = 20
COPIES: Final = ("pipe-", "standard-input", "/optsched-")
"""What temporary copies are called: no message may name them."""

INPUTS: Final = tuple(find_inputs())
ROOT: Final = Path(__file__).parents[2]
PACKING: Final = ROOT / "instances" / "examples" / "packing.yaml"
TRACE: Final = ROOT / "instances" / "traces" / "failures.yaml"
SMALL: Final = "--model volcano-compatible --solver none"
LINES: Final[Mapping[tuple[str, str], str]] = {
    ("solve", "instance"): f"solve {{bad}} {SMALL}",
    ("solve", "--model"): "solve {packing} --solver none --model {bad}",
    ("solve", ""): f"solve {{packing}} {SMALL} {{option}} {{bad}}",
    ("simulate", "trace"): f"simulate {{bad}} {SMALL}",
    ("simulate", "--model"): "simulate {trace} --solver none --model {bad}",
    ("simulate", "--nodes"): f"simulate {{acme}} {SMALL} --format acme --nodes {{bad}}",
    ("compare", "--nodes"): f"compare {{acme}} {SMALL} --workers 0 --format acme --nodes {{bad}}",
    ("simulate", ""): f"simulate {{trace}} {SMALL} {{option}} {{bad}}",
    ("compare", "traces"): f"compare {{bad}} {SMALL} --workers 0",
    ("compare", "--model"): "compare {trace} --solver none --workers 0 --model {bad}",
    ("compare", ""): f"compare {{trace}} {SMALL} --workers 0 {{option}} {{bad}}",
    ("what-if", "--filename"): f"what-if {SMALL} -f {{bad}}",
    ("what-if", "--model"): "what-if --solver none -f {Job} --snapshot {packing} --model {bad}",
    ("what-if", ""): f"what-if {SMALL} -f {{Job}} {{option}} {{bad}}",
    ("what-if", "--plugins-dir"): (
        f"what-if {SMALL} -f {{Job}} --snapshot {{packing}} --plugins-dir {{bad}}"
    ),
    ("solve FILE.vbp", "files"): "solve {bad} --time-limit 1",
    ("solve model_*.txt", "model"): "solve {bad} --assignment {initial} --time-limit 0.2",
    ("solve model_*.txt", ""): "solve {machines} --time-limit 0.2 {option} {bad}",
}
"""Lines by command and option; the default is the name, arguments and the option."""


def line_of(given: Input) -> str:
    name, option = given.command, given.option
    line = LINES.get((name, option)) or LINES.get((name, ""))
    if line is None and option.startswith("-"):
        line = f"{ACTS[name].line if name in ACTS and option == '--kubeconfig' else name}"
        line += " {option} {bad}"
    more = " ".join((*COMPANIONS.get(option, ()), *PORTS.get(name, ())))
    return f"{line or name + ' {bad}'} {more}"


@functools.cache
def credentials() -> Credentials:
    return renew_credentials(None, ("webhook",), datetime.now(UTC))[0]


def run(given: Input, bad: str, folder: Path, stdin: bytes = b"") -> Result:
    folder.mkdir(exist_ok=True)
    names = {"packing": PACKING, "trace": TRACE, "machines": MODEL}
    pair = {"certificate": credentials().certificate, "key": credentials().key}
    texts = {
        **FILES,
        **{name: pem.decode() for name, pem in pair.items()},
        "acme": ACME,
        "initial": "0 1 0\n",
        "other": "x",
        "kubeconfig": KUBECONFIG.format(port=1),
    }
    for name, text in texts.items():
        names[name] = folder / name
        names[name].write_text(text)
    named = {**names, "bad": bad, "option": given.option}
    word, *rest = [part.format(**named) for part in line_of(given).split()]
    old = {command.name: command for command in legacy.COMMANDS}
    command, words = (old[word], rest) if word in old else (main, [word, *rest])
    env = {"KUBECONFIG": str(names["kubeconfig"]), "POD_NAMESPACE": "x"}
    with bounded():
        return CliRunner().invoke(command, words, env=env, input=stdin)


class Hang(BaseException):
    """The error of a command that took too long; no command catches a BaseException."""


@contextmanager
def bounded() -> Iterator[None]:
    """Stop a command that reads or runs forever."""

    def stop(*_: object) -> None:
        raise Hang(f"still running after {BOUND_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, BOUND_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def piped(path: Path, content: bytes) -> Iterator[None]:
    """Create a pipe that delivers its content to the first reader."""
    os.mkfifo(path)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            with suppress(OSError):
                end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                os.set_blocking(end, True)
                with suppress(OSError):
                    os.write(end, content)
                os.close(end)
                return
            over.wait(0.005)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


BINARY: Final = bytes(range(256))
CONTENTS: Final = {"binary": BINARY, "NUL": b"\0", "cut": b"\xef\xbb\xbf{", "empty": b""}
URL: Final = "https://example.org/a"
PLACES: Final = ("gone", "dangling", "x" * 300, "unreadable", "folder", "pipe", "-", URL)
LENIENT: Final = {"--dask-ca", "--dask-cert", "--dask-key"}
"""Options whose message need not name the file: Dask's names its three options together."""

TAKEN: Final = {("--plugins-dir", "folder"), ("--admission-conf", "empty")}
"""What is no mistake: a folder without plugins, a file without resource groups."""

STANDARD_INPUT: Final = "standard input"
ROWS: Final = [
    pytest.param(given, kind, id=f"{given.command} {given.option}-{kind[:8]}")
    for given in INPUTS
    for kind in (*CONTENTS, *PLACES)
    if (given.option, kind) not in TAKEN
]


def enter_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the working directory, and return its path."""
    places = tmp_path / "given"
    places.mkdir()
    monkeypatch.chdir(places)
    return places


def suffix_of(given: Input) -> str:
    """Return the suffix that a command expects of an input."""
    return "" if given.option.startswith("-") else SUFFIXES.get(given.command, "")


@pytest.mark.parametrize(("given", "kind"), ROWS)
def test_an_unreadable_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Input, kind: str
) -> None:
    places = enter_folder(tmp_path, monkeypatch)
    suffix = suffix_of(given)
    name = kind if kind == "-" else kind + suffix
    bad = Path(name)
    pipe = piped(bad, BINARY) if kind == "pipe" else nullcontext()
    if kind in CONTENTS:
        bad.write_bytes(CONTENTS[kind])
    elif kind == "dangling":
        # Permissions do not stop root, but a dangling link stops every user.
        bad.symlink_to("nowhere")
    elif kind == "unreadable":
        # Every user can open this file, also root, and no user can read its first byte.
        bad.symlink_to("/proc/self/mem")
    elif kind == "folder":
        bad.mkdir()
    with pipe:
        there = list(places.iterdir())
        result = run(given, name, tmp_path / "others", BINARY)
    assert isinstance(result.exception, SystemExit), (result.exception, result.output)
    assert result.exit_code in set(codes_of(given.command)) - {0}, result.output
    assert "Traceback" not in result.output
    names = (name, STANDARD_INPUT) if kind == "-" else (name,)
    assert any(each in result.stderr for each in names) or given.option in LENIENT, result.stderr
    assert not any(copy in result.stderr for copy in COPIES), result.stderr
    assert list(places.iterdir()) == there
    assert kind not in CONTENTS or bad.read_bytes() == CONTENTS[kind]


def test_every_path_is_read_or_written() -> None:
    """The types `InputPath` and `OutputPath` refuse URLs; `click.Path` does not."""
    paths = [
        (name, param.opts, isinstance(param.type, (InputPath, OutputPath)))
        for name, command in all_commands()
        for param in command.params
        if isinstance(param.type, click.Path)
    ]
    assert len(paths) > 30
    assert [path for path in paths if not path[-1]] == []


@pytest.mark.parametrize(
    "line",
    [
        f"simulate {TRACE} {SMALL} --out {URL}",
        f"simulate {TRACE} {SMALL} --report {URL}",
        f"solve {PACKING} {SMALL} --result {URL}",
        f"solve {MODEL} --out {URL}",
        f"snapshot --record {URL}",
        f"local up --dir {URL}",
        f"scheduler --dump-dir {URL}",
    ],
)
def test_nothing_is_written_to_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with bounded():
        result = CliRunner().invoke(main, line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {URL}: is a URL: name a file or folder on this machine\n"
    assert list(tmp_path.iterdir()) == []


# --- permissions ----------------------------------------------------------------------------------

FOLDERS: Final = [
    pytest.param(given, mode, id=f"{given.command} {given.option}-{mode:o}")
    for given in INPUTS
    for mode in (0o000, 0o444)
]


@pytest.mark.parametrize(("given", "mode"), FOLDERS)
def test_an_input_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Input, mode: int
) -> None:
    """Mode 444 permits a listing of the folder, but its files cannot be opened."""
    enter_folder(tmp_path, monkeypatch)
    suffix = suffix_of(given)
    bad = Path("bad" + suffix)
    bad.mkdir()
    for name in ("a.yaml", "snapshot-1.yaml", "a.py", "a.trace", "result.json"):
        (bad / name).write_text("x: 1\n")
    if mode == 0 and given.option not in ("--plugins-dir", "folder"):
        for each in bad.iterdir():
            each.unlink()
        bad.rmdir()
        bad.write_text("x: 1\n")
    bad.chmod(mode)
    with permissions_apply():
        result = run(given, str(bad), tmp_path / "others")
    bad.chmod(0o700)
    assert isinstance(result.exception, SystemExit), (result.exception, result.output)
    assert result.exit_code in set(codes_of(given.command)) - {0}, result.output
    assert "Traceback" not in result.output
    assert str(bad) in result.stderr or given.option in LENIENT, result.stderr


@pytest.mark.parametrize("line", ["solve {0}", "simulate {0}", "what-if -f {Job} --snapshot {0}"])
def test_a_folder_within_an_instance_is_not_left_out(tmp_path: Path, line: str) -> None:
    folder, job = tmp_path / "instance", tmp_path / "Job"
    (folder / "inner").mkdir(parents=True)
    job.write_text(FILES["Job"])
    for place in (folder, folder / "inner"):
        (place / "packing.yaml").write_bytes(PACKING.read_bytes())
    (folder / "inner").chmod(0o000)
    words = line.format(folder, Job=job).split()
    with permissions_apply():
        result = CliRunner().invoke(main, [*words, *SMALL.split()])
    (folder / "inner").chmod(0o700)
    assert (result.exit_code, result.stdout) == (2, "")
    reason = f"{folder / 'inner'}: cannot be read: Permission denied"
    assert result.stderr.removeprefix("Error: ") == f"{reason}\n"
