"""The output of every command, with control characters in every text that users can write."""

from __future__ import annotations

import ast
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pytest
from click.testing import CliRunner

from optsched.api.kinds import JOB, JOB_FLOW, JOB_TEMPLATE
from optsched.cli import legacy
from optsched.cli.base.command_errors import show_crash
from optsched.cli.main import main
from optsched.cli.services.service_options import set_up_logging
from optsched.formats.files.yaml_text import read_yaml, write_yaml
from optsched.kube.client.errors import Rejected
from optsched.units.plaintext import is_plain, printable, write_json
from tests.cli.clusters import CONTEXT, FakeCluster, job, pod, queue, values
from tests.cli.test_gpu_hours import FAILURES, PICTURE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "instances" / "examples"
EVIL: Final = "x\x1b[2J\x9b2J\r\u202ey\x07\x7f\u2066\u2028\x85z"

# --- one way to print -----------------------------------------------------------------------------

PRINTS: Final = frozenset(
    {"print", "click.echo", "click.secho", "click.echo_via_pager", "click.progressbar"}
    | {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__", "os.write"}
    | {"Console", "rich.print", "pprint.pprint", "logging.basicConfig", "warnings.warn"}
)
ALLOWED: Final = {
    ("cli/base/console.py", "click.echo"),
    ("cli/base/console.py", "Console"),
    ("cli/base/command_errors.py", "sys.stderr"),
    ("cli/services/service_options.py", "sys.stderr"),
    ("library.py", "warnings.warn"),
    ("plugin.py", "warnings.warn"),
    ("plugins/accounting.py", "warnings.warn"),
    ("plugins/custom/proposals.py", "warnings.warn"),
    ("plugins/extension_points.py", "warnings.warn"),
    ("plugins/verification/world.py", "warnings.warn"),
    ("study/fgd/__main__.py", "sys.stdout"),
    ("study/fgd/__main__.py", "sys.stderr"),
}
DUMPS: Final = {
    "formats/snapshots/instance_files.py",
    "units/plaintext.py",
    "units/input_errors.py",
}
"""Where JSON is written with `ensure_ascii=False`: a hash, `write_json`, and parts of messages."""


_MAY_PRINT: Final = re.compile(
    r"\b(?:print|echo|secho|echo_via_pager|progressbar|(?:__)?std(?:out|err)(?:__)?|write|Console|pprint"
    r"|basicConfig|warn|ensure_ascii)\b"
)
"""Modules without any of these words need no parser."""


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def uses(tree: ast.AST) -> Iterator[str]:
    """Yield the printing functions that a module uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in PRINTS:
            yield dotted(node.func)
        elif isinstance(node, ast.Attribute) and dotted(node) in PRINTS:
            yield dotted(node)
        elif isinstance(node, ast.ClassDef):
            yield from (dotted(base) for base in node.bases if dotted(base) in PRINTS)
        elif isinstance(node, ast.keyword) and node.arg == "ensure_ascii":
            yield "ensure_ascii"
        elif isinstance(node, ast.ImportFrom) and node.module in ("click", "sys", "rich"):
            yield from (
                name for alias in node.names if (name := f"{node.module}.{alias.name}") in PRINTS
            )


def test_commands_print_in_one_way() -> None:
    texts = {path: path.read_text("utf-8") for path in (ROOT / "optsched").rglob("*.py")}
    found = {
        (path.relative_to(ROOT / "optsched").as_posix(), use)
        for path, text in texts.items()
        if _MAY_PRINT.search(text)
        for use in uses(ast.parse(text))
    }
    assert {each for each in found if each[1] != "ensure_ascii"} == ALLOWED
    assert {path for path, use in found if use == "ensure_ascii"} == DUMPS


@pytest.mark.parametrize(
    "code",
    [
        "print('a')",
        "click.echo(a)",
        "import sys\nsys.stdout.write(a)",
        "from click import echo",
        "Console().print(a)",
        "class C(Console): pass",
        "json.dumps(a, ensure_ascii=False)",
    ],
)
def test_other_ways_are_found(code: str) -> None:
    assert list(uses(ast.parse(code)))


# --- what writers make of them --------------------------------------------------------------------

EVERY: Final = [chr(code) for code in (*range(0xA0), 0xAD, *range(0x200B, 0x2070), 0xFEFF, 0xE0001)]


@pytest.mark.parametrize("write", [write_yaml, write_json])
def test_json_and_yaml_have_escapes_and_say_the_same(write: Any) -> None:
    value = {
        "texts": [f"a{c}b" for c in EVERY],
        **{f"k{c}": c for c in EVERY},
        "long": f"{'word ' * 60}{EVIL}",
        "lines": f"one\ntwo {EVIL}\n\nthree",
        "plain": ["ü 漢", "two\nlines\n", "tab\there", "yes", "012"],
    }
    text = write(value)
    assert is_plain(text)
    (document,) = read_yaml(text) if write is write_yaml else [None]
    assert (json.loads(text) if document is None else document.value) == value


def test_plain_texts_are_written_as_before() -> None:
    value = {"a": ["ü 漢", "two\nlines\n", "x: y", "'"], "b": "z"}
    assert write_json(value, indent=1) == json.dumps(value, ensure_ascii=False, indent=1)
    assert write_yaml(value) == ("a:\n- ü 漢\n- 'two\n\n  lines\n\n  '\n- 'x: y'\n- ''''\nb: z\n")


# --- commands on a cluster ------------------------------------------------------------------------

_KEPT: Final = frozenset(
    {"apiVersion", "kind", "namespace", "uid", "phase", "resourceVersion", "policy", "action"}
)
_AMOUNT: Final = re.compile(r"[\d.]+\w*|\d{4}-.*|True|Open|all|volcano|default|IfNotPresent|.*Job")


def poisoned(value: Any, key: str = "") -> Any:
    """Return the value with control characters in every text that users can write."""
    if isinstance(value, dict):
        found = {name: poisoned(each, name) for name, each in value.items()}
        if key == "metadata":
            found["annotations"] = {**found.get("annotations", {}), EVIL: EVIL}
        return found
    if isinstance(value, list):
        return [poisoned(each, key) for each in value]
    if not isinstance(value, str) or key in _KEPT or _AMOUNT.fullmatch(value):
        return value
    return f"{value}{EVIL}"


@pytest.fixture
def evil(cluster: FakeCluster) -> FakeCluster:
    """Return a cluster of objects that hold control characters."""
    condition = {"type": "Unschedulable", "status": "True", "reason": "r", "message": "m"}
    objects = [
        job("train", phase="Pending", conditions=[condition], state={"message": "m"}),
        pod("train-0", labels={"volcano.sh/job-name": "train"}),
        queue("ml", "root", status={"state": "Open", "allocated": {"cpu": "1"}}),
        queue("root"),
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "train", "namespace": CONTEXT},
            "spec": {"minMember": 1, "queue": "ml"},
            "status": {"phase": "Pending", "conditions": [condition]},
        },
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e", "namespace": CONTEXT},
            "involvedObject": {"kind": "Job", "namespace": CONTEXT},
            "reason": "FailedCreate",
            "message": "denied",
            "type": "Warning",
            "source": {"component": "c"},
            "count": 1,
        },
        *(
            {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "metadata": {"name": "flow", "namespace": CONTEXT},
                "spec": {"flows": [{"name": "a"}], "tasks": []},
                "status": {"state": {"phase": "Running"}},
            }
            for kind in (JOB_FLOW, JOB_TEMPLATE)
        ),
    ]
    for each in objects:
        # A user can select the second object by its name, which has no control characters.
        cluster.put(poisoned(each))
        again = poisoned(each)
        again.get("involvedObject", {})["name"] = "train"
        cluster.put({**again, "metadata": {**again["metadata"], "name": each["metadata"]["name"]}})
    cluster.warnings = [EVIL]
    return cluster


NAME, FLOW, QUEUE = "train", "flow", "ml"
FILE: Final = "FILE"
"""Stands for a file of the test: a manifest with control characters."""

COMMANDS: Final = {
    "job list": ((), ("-A", "--position"), ("-q", QUEUE)),
    "job view": ((NAME,), (EVIL,)),
    "job explain": ((NAME,), (EVIL,)),
    "job watch": ((NAME, "--timeout", "1ms"), (EVIL, "--timeout", "1ms")),
    "job suspend": ((NAME,), (EVIL,)),
    "job resume": ((NAME,), (EVIL,)),
    "job delete": ((NAME,), (EVIL,)),
    "job run": (("-N", EVIL), ("-f", FILE), ("-N", "a", "-c", f"'{EVIL}"), ("-R", EVIL)),
    "jobflow create": (("-f", FILE), ("-f", EVIL)),
    "jobflow list": ((), ("-A",)),
    "jobflow get": ((FLOW,), (EVIL,)),
    "jobflow describe": ((), (FLOW,), (EVIL,)),
    "jobflow delete": ((FLOW,), (EVIL,)),
    "jobtemplate create": (("-f", FILE), ("-f", EVIL)),
    "jobtemplate list": ((), ("-A",)),
    "jobtemplate get": ((FLOW,), (EVIL,)),
    "jobtemplate describe": ((), (FLOW,), (EVIL,)),
    "jobtemplate delete": ((FLOW,), (EVIL,)),
    "pod list": ((), ("-A",), ("-j", NAME), ("-q", EVIL)),
    "queue list": ((), ("--tree",)),
    "queue get": ((QUEUE,), (EVIL,)),
    "queue create": ((EVIL,), (QUEUE,), ("a", "--capability", f"{EVIL}=1")),
    "queue operate": ((QUEUE, "-w", "2"), (QUEUE, "-a", "close"), (EVIL, "-a", "open")),
    "queue delete": ((QUEUE,), (EVIL,)),
    "what-if": (("-f", FILE), ("-f", EVIL)),
}
ON_FILES: Final = ("solve", "simulate", "compare", "gpu-hours", "snapshot")
"""Commands with tests of their own below."""

SERVICES: Final = ("scheduler", "controllers", "webhook")
OF_THIS_MACHINE: Final = ("completion", "demo", "version", "local")
"""These print nothing that comes from users or clusters."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def test_every_command_is_tried() -> None:
    found = {" ".join(path) for path in leaves(main)}
    apart = {name for name in found if name.split()[0] in (*SERVICES, *OF_THIS_MACHINE, *ON_FILES)}
    assert found - apart == COMMANDS.keys()


def forms_of(path: list[str]) -> list[tuple[str, ...]]:
    """Return the output options of a command: one tuple for each format."""
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name) or command
    (*_, form) = [None, *(p for p in command.params if "-o" in p.opts)]
    choices = form.type.choices if form and isinstance(form.type, click.Choice) else ()
    return [("-o", str(choice)) for choice in choices] or [()]


def assert_plain(result: Result) -> None:
    """Check that the output of a command contains no control characters."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    for text in (result.stdout, result.stderr):
        assert is_plain(text), text


def is_shown(text: str) -> bool:
    """Return whether a text contains an escaped control character."""
    return re.search(r"\\x1b|\\u001b|\\e", text) is not None


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_a_cluster_print_plain_text(
    evil: FakeCluster, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "a.yaml"
    kept = dict(evil.objects)
    shown = ""
    for given in COMMANDS[command]:
        for form in forms_of(command.split()):
            evil.objects = dict(kept)
            manifest = poisoned(job("new"))
            file.write_text(write_yaml(manifest))
            arguments = [str(file) if each == FILE else each for each in given]
            result = CliRunner().invoke(main, [*command.split(), *arguments, *form])
            assert_plain(result)
            shown += result.output
    # The output shows the character escaped; the command did not omit it.
    assert is_shown(shown)


def test_snapshot_refuses_files_in_plain_text() -> None:
    result = CliRunner().invoke(main, ["snapshot", "--kubeconfig", EVIL])
    assert is_shown(result.stderr)
    assert_plain(result)


def test_programs_read_what_was_stored(evil: FakeCluster) -> None:
    def printed(*arguments: str) -> str:
        result = CliRunner().invoke(main, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout

    (stored,) = [each for each in evil.of(JOB) if each["metadata"]["name"] == NAME]
    for found in (
        json.loads(printed("job", "view", NAME, "-o", "json")),
        values(printed("job", "view", NAME, "-o", "yaml"))[0],
    ):
        assert found["metadata"]["annotations"] == {EVIL: EVIL}
        assert found["status"]["conditions"] == stored["status"]["conditions"]
    flows = json.loads(printed("jobflow", "list", "-o", "json"))["items"]
    assert {flow["metadata"]["name"] for flow in flows} == {FLOW, f"{FLOW}{EVIL}"}


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("command", [legacy.vjobs, legacy.vqueues, legacy.vcancel, legacy.vsub])
def test_old_commands_print_plain_text(command: click.Command) -> None:
    for given in ([], ["-n", NAME], ["-n", EVIL], [f"--{EVIL}"]):
        assert_plain(CliRunner().invoke(command, given))


@pytest.mark.parametrize("command", ["job run -f", "queue create"])
def test_what_a_server_refuses_is_printed_in_plain_text(
    evil: FakeCluster, tmp_path: Path, command: str
) -> None:
    evil.refuse("create", Rejected(422, "Invalid", f"admission webhook {EVIL} denied"))
    file = tmp_path / "a.yaml"
    file.write_text(write_yaml(job("new")))
    given = str(file) if command.endswith("-f") else "new"
    result = CliRunner().invoke(main, [*command.split(), given])
    assert result.exit_code != 0
    assert printable(EVIL) in result.stderr
    assert_plain(result)


# --- commands on files ----------------------------------------------------------------------------


def poison_file(source: Path, target: Path) -> Path:
    """Write a copy of an instance whose names contain control characters, and return its path."""
    (items,) = values(source.read_text())
    target.write_text(write_yaml(poisoned(items)))
    return target


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("target", [(), ("--out", "-"), ("--result", "-"), ("--report", "-")])
def test_solve_prints_plain_text(tmp_path: Path, form: str, target: tuple[str, ...]) -> None:
    file = poison_file(EXAMPLES / "packing.yaml", tmp_path / "a.yaml")
    result = CliRunner().invoke(
        main, ["solve", str(file), "--solver", "none", "-o", form, "--all", *target]
    )
    assert_plain(result)
    if not target and form == "json":
        assert EVIL in json.dumps(json.loads(result.stdout), ensure_ascii=False).replace(
            json.dumps(EVIL, ensure_ascii=False)[1:-1], EVIL
        )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", f'kind: "{printable(EVIL)}"\napiVersion: v1\n'),
        ("a.yaml", f"a: [{EVIL}"),
        ("a.json", f'{{"kind": "{EVIL}'),
        ("a.vbp", f"{EVIL}\n1 2\n"),
        (f"{EVIL.replace('/', '')}.yaml", "kind: Unknown\n"),
    ],
)
def test_mistakes_in_files_are_printed_in_plain_text(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    for command in (["solve"], ["solve", "--strict"], ["simulate"], ["compare"], ["gpu-hours"]):
        assert_plain(CliRunner().invoke(main, [*command, str(file)]))
    for command in (
        ["solve", str(EXAMPLES / "packing.yaml"), "--model"],
        ["scheduler", "--config"],
    ):
        assert_plain(CliRunner().invoke(main, [*command, str(file)]))


def test_replays_print_plain_text(tmp_path: Path) -> None:
    trace = poison_file(FAILURES, tmp_path / "trace.yaml")
    common = ["--model", "volcano-compatible"]
    for given in ((), ("-o", "json", "--report", "-")):
        result = CliRunner().invoke(main, ["simulate", str(trace), *common, *given])
        assert_plain(result)
    # The second and the third command find all cells in the folder of the first one.
    shown = ""
    kept = ["--workers", "0", "--out", str(tmp_path / "cells")]
    for form in ("table", "json", "csv"):
        result = CliRunner().invoke(main, ["compare", str(trace), *common, *kept, "-o", form])
        assert_plain(result)
        shown += result.stdout
    assert is_shown(shown)


def test_gpu_hours_are_printed_in_plain_text(tmp_path: Path) -> None:
    for i, hour in enumerate(("10", "11")):
        text = PICTURE.format(phase="Running", taken=f"2026-01-05T{hour}:00:00Z")
        documents = [poisoned(each) for each in values(text)]
        (tmp_path / f"snapshot-{i}.yaml").write_text("---\n".join(map(write_yaml, documents)))
    for form in ("table", "csv", "json"):
        result = CliRunner().invoke(main, ["gpu-hours", str(tmp_path), "-o", form])
        assert_plain(result)
        assert is_shown(result.stdout), result.output


@pytest.mark.parametrize("service", SERVICES)
def test_processes_refuse_flags_in_plain_text(service: str) -> None:
    flags = {
        "scheduler": "--config",
        "controllers": "--controllers",
        "webhook": "--enabled-admission",
    }
    for given in ([flags[service], EVIL], [f"--{EVIL}"], ["--listen-address", EVIL]):
        result = CliRunner().invoke(main, [service, *given])
        assert result.exit_code != 0
        assert_plain(result)


# --- logs and crashes -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs_of_libraries_are_plain_text(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("optsched")
    monkeypatch.setattr(log, "handlers", [])
    assert logging.lastResort is not None
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    set_up_logging(0, form)
    log.propagate, before = False, log.propagate
    try:
        log.warning("pod %s", EVIL)
        # pytest adds a handler to the root logger. Without one, this handler gets records of
        # libraries.
        try:
            raise ValueError(EVIL)
        except ValueError as e:
            record = logging.LogRecord(
                "asyncio", logging.ERROR, "f", 1, EVIL, (), (type(e), e, None)
            )
        logging.lastResort.handle(record)
    finally:
        log.propagate = before
    shown = capsys.readouterr().err
    assert is_plain(shown)
    first, *rest = shown.splitlines()
    escaped = printable(EVIL) if form == "text" else json.dumps(EVIL)[1:-1]
    assert escaped in first
    assert escaped in rest[0]


def test_a_crash_is_printed_in_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_crash(ValueError, ValueError(EVIL), None)
    shown = capsys.readouterr().err
    assert shown == f"ValueError: {printable(EVIL)}\n"
