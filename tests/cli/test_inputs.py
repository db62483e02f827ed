"""Commands on files refuse odd inputs and outputs with code 2, and overwrite nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner

from optsched.cli.base.console import stderr, stdout
from optsched.cli.base.path_arguments import OutputPath
from optsched.cli.commands import all_commands
from optsched.cli.main import main
from optsched.formats.files.atomic_write import can_be_replaced
from tests.cli.test_exit_codes import KUBECONFIG
from tests.cli.test_reassign import MODEL

if TYPE_CHECKING:
    from click.testing import Result

ROOT = Path(__file__).parents[2]
PACKING = ROOT / "instances" / "examples" / "packing.yaml"
FAILURES = ROOT / "instances" / "traces" / "failures.yaml"
VBP = "2\n4 4\n1\n1 2 3\n"
NODE = (
    "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: 8, pods: 9}}\n"
)
JOB = """---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  minAvailable: 2
  tasks:
  - name: w
    replicas: 3
    template: {spec: {containers: [{name: a, image: b, resources: {requests: {cpu: 1}}}]}}
"""
GREEDY = ("--solver", "none")
SMALL = ("--model", "volcano-compatible", *GREEDY)


def run(*arguments: object, given: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], input=given)


def reading(command: str, source: object) -> list[object]:
    """Return the cheapest arguments with which a command reads a source."""
    return {
        "solve": ["solve", source, *SMALL],
        "pack": ["solve", source, "--time-limit", 1],
        "reassign": ["solve", source, "--time-limit", 1],
        "simulate": ["simulate", source, *SMALL],
        "compare": ["compare", source, *SMALL, "--workers", 0],
        "gpu-hours": ["gpu-hours", source],
    }[command]


SUFFIX = {"pack": ".vbp", "reassign": ".txt"}
COMMANDS = ("solve", "pack", "reassign", "simulate", "compare", "gpu-hours")
CONTENTS = {
    "empty": b"",
    "blank": b"\r\n\r\n",
    "binary": bytes(range(256)),
    "NUL": b"\0",
    "BOM alone": b"\xef\xbb\xbf",
    "a word": b"hello",
    "a number": b"12",
    "JSON list": b"[1, 2]",
    "empty List": b'{"apiVersion": "v1", "kind": "List", "items": []}',
    "List of nothing": b"apiVersion: v1\nkind: List\nitems:\n",
    "documents": b"---\n---\na: 1\n---\n- b\n",
    "deep": b"[" * 3000,
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_contents_that_mean_nothing_are_refused(tmp_path: Path, command: str, content: str) -> None:
    path = tmp_path / f"{'ü' * 40}[b]{SUFFIX.get(command, '.yaml')}"
    path.write_bytes(CONTENTS[content])
    result = run(*reading(command, path))
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr
    assert path.read_bytes() == CONTENTS[content]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "gpu-hours"])
@pytest.mark.parametrize(
    "source", ["gone", "https://example.org/cluster", "folder", "x" * 300, "locked"]
)
def test_places_that_can_not_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = source + SUFFIX.get(command, "")
    if source == "folder":
        Path(name).mkdir()
    if source == "locked":
        Path(name).write_text(VBP)
        monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != name)
    if source == "locked" and command == "pack":
        monkeypatch.setattr(Path, "read_text", locked)
    result = run(*reading(command, name))
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert name in result.stderr


def locked(path: Path, *_: object) -> str:
    raise PermissionError(13, "Permission denied", str(path))


def test_names_are_never_markup(tmp_path: Path) -> None:
    path = tmp_path / "names.yaml"
    named = NODE.replace("n1", '"[/b]"') + JOB.replace("train", '"[red]:smile:[/]"')
    path.write_text(f"{named}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: '[/x]'}}\n")
    result = run("solve", path, *SMALL)
    assert result.exit_code == 0, result.output
    assert "default/[red]:smile:[/]" in result.stdout
    assert "[/b] ×3" in result.stdout
    assert "names.yaml:16: v1 ConfigMap [/x] is ignored" in result.stderr


def test_texts_of_progress_are_never_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with stderr().status("reading [/b]") as status:
        status.update("read [/b]")
    stdout().print("[/b]")
    assert capsys.readouterr().out == "[/b]\n"


def test_progress_is_a_line_now_and_then_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s = [0.0]
    monkeypatch.setattr("optsched.cli.base.console.time.monotonic", lambda: passed_s[-1])
    with stderr().status("playing") as status:
        for number, now_s in enumerate((1.0, 61.0, 62.0), start=1):
            passed_s.append(now_s)
            status.update(f"played {number}")
    assert capsys.readouterr().err == "played 2\n"


# --- pipes ---------------------------------------------------------------------------------------


def test_the_standard_input_is_read() -> None:
    for source, command in ((PACKING, "solve"), (FAILURES, "simulate"), (FAILURES, "compare")):
        plain = run(*reading(command, source))
        piped = run(*reading(command, "-"), given=source.read_bytes())
        assert (plain.exit_code, piped.exit_code) == (0, 0), piped.output
        assert len(piped.stdout.splitlines()) == len(plain.stdout.splitlines())


@pytest.mark.parametrize(
    "text", [NODE + JOB, "\ufeff" + NODE + JOB, (NODE + JOB).replace("\n", "\r\n")]
)
def test_a_pipe_is_read_with_a_byte_order_mark_and_with_crlf(tmp_path: Path, text: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_text, args=(text, "utf-8"))
    writer.start()
    result = run("solve", fifo, *SMALL)
    writer.join()
    assert result.exit_code == 0, result.output
    assert "default/train" in result.stdout


def test_process_substitution_is_read() -> None:
    """A shell passes the pipe of another command as a path below `/dev/fd`."""
    words = [sys.executable, "-m", "optsched.cli.main", "solve", "<(cat", f"{PACKING})"]
    line = " ".join([*words, "--model", "volcano-compatible", "--solver", "none", "-o", "json"])
    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["plan"]["binds"]


def test_a_model_may_come_from_a_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "model"
    os.mkfifo(fifo)
    text = (ROOT / "models" / "volcano-compatible.yaml").read_text()
    writer = threading.Thread(target=fifo.write_text, args=(text,))
    writer.start()
    result = run("solve", PACKING, "--model", fifo)
    writer.join()
    assert result.exit_code == 0, result.output


# --- outputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--out", "--result", "--report"])
def test_solve_prints_one_file_to_the_standard_output(option: str) -> None:
    result = run("solve", PACKING, *SMALL, option, "-")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("<!DOCTYPE html" if option == "--report" else "{")
    assert "certificate" in result.stderr
    assert not Path("-").exists()


@pytest.mark.parametrize("option", ["--out", "--result", "--report"])
def test_solve_never_overwrites_its_inputs(tmp_path: Path, option: str) -> None:
    path, model = tmp_path / "p.yaml", tmp_path / "m.yaml"
    path.write_bytes(PACKING.read_bytes())
    model.write_bytes((ROOT / "models" / "volcano-compatible.yaml").read_bytes())
    (tmp_path / "link.yaml").symlink_to(path)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for target in (path, model, tmp_path / "link.yaml"):
        result = run("solve", path, "--model", model, option, target)
        assert result.exit_code == 2
        assert f"{option} {target}: is read by this command" in result.stderr
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_other_commands_never_overwrite_their_inputs(tmp_path: Path) -> None:
    trace, vbp = tmp_path / "result.json", tmp_path / "a.vbp"
    trace.write_bytes(FAILURES.read_bytes())
    vbp.write_text(VBP)
    for arguments in (
        ["simulate", trace, *SMALL, "--out", tmp_path],
        ["simulate", trace, *SMALL, "--report", trace],
        ["compare", trace, *SMALL, "--report", trace],
        ["solve", vbp, "--out", vbp],
    ):
        result = run(*arguments)
        assert (result.exit_code, "is read by this command" in result.stderr) == (2, True)
    assert (trace.read_bytes(), vbp.read_text()) == (FAILURES.read_bytes(), VBP)


PLUGIN: Final = PACKING.parent / "plugins" / "per_node.py"
ACME: Final = """\
job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration
1,a,1,1,1,COMPLETED,2023-03-01 00:00:00+08:00,2023-03-01 00:00:10+08:00,2023-03-01 00:01:10+08:00,60
"""
OPENB_NODES: Final = "sn,cpu_milli,memory_mib,gpu,model\nn,64000,262144,8,V100M16\n"
OPENB_PODS: Final = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p,1000,1000,1,1000,,LS,Running,0,100,0
"""
ONCE: Final = ("--model", "volcano-compatible", "--workers", 0)
FILES_READ: Final = {
    "pictures/snapshot-000001.yaml": PACKING.read_text(),
    "folder/a.yaml": PACKING.read_text(),
    "plugins/rule.py": PLUGIN.read_text(),
    "models/crater.json": (ROOT / "models" / "volcano-compatible.yaml").read_text(),
    "openb/openb_node_list_gpu_node.csv": OPENB_NODES,
    "openb/pods.csv": OPENB_PODS,
    "acme.csv": ACME,
    "nodes/a.yaml": NODE,
    "kubeconfig.yaml": KUBECONFIG.format(port=1),
}
"""Files that a command reads, although its line names a folder or another file."""


@pytest.mark.parametrize(
    ("read", "line"),
    [
        ("folder/a.yaml", ("simulate", "folder", *SMALL, "--report")),
        ("folder/a.yaml", ("compare", "folder", *ONCE, "--report")),
        ("pictures/snapshot-000001.yaml", ("simulate", "pictures", *SMALL, "--report")),
        ("plugins/rule.py", ("solve", PACKING, *SMALL, "--plugins-dir", "plugins", "--out")),
        ("plugins/rule.py", ("solve", PACKING, *SMALL, "--plugins-dir", "plugins", "--result")),
        ("plugins/rule.py", ("simulate", FAILURES, *SMALL, "--plugins-dir", "plugins", "--report")),
        ("plugins/rule.py", ("compare", FAILURES, *ONCE, "--plugins-dir", "plugins", "--report")),
        (
            "openb/openb_node_list_gpu_node.csv",
            ("simulate", "openb/pods.csv", "--format", "openb", *SMALL, "--report"),
        ),
        (
            "nodes/a.yaml",
            ("simulate", "acme.csv", "--format", "acme", "--nodes", "nodes", *SMALL, "--report"),
        ),
        ("kubeconfig.yaml", ("snapshot", "-k", "kubeconfig.yaml", "--out")),
        ("kubeconfig.yaml", ("snapshot", "--out")),
    ],
)
def test_files_that_are_read_on_the_way_are_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str, line: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "gone.yaml:kubeconfig.yaml")
    for name, text in FILES_READ.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("link").symlink_to(read)
    link = [] if line[0] == "snapshot" else ["link"]  # a snapshot needs a file name extension
    for target in (read, f"./{read}", tmp_path / read, *link):
        result = run(*line, target)
        assert result.exit_code == 2, result.output
        assert "is read by this command and would be overwritten" in result.stderr
    assert {name: Path(name).read_text() for name in FILES_READ} == FILES_READ


def test_a_file_of_several_models_is_no_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    model = Path("a/crater.json")
    model.write_text((ROOT / "models" / "volcano-compatible.yaml").read_text())
    given = ("solve", PACKING, *GREEDY, "--model", model, "--model", "crater")
    for option in ("--out", "--result"):
        result = run(*given, option, "a")
        assert result.exit_code == 2
        assert f"{option} a/crater.json: is read by this command" in result.stderr
    assert list(Path("a").iterdir()) == [model]


def test_a_plan_never_replaces_the_result_that_is_resumed(tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    assert run("solve", PACKING, *SMALL, "--result", kept).exit_code == 0
    before = kept.read_text()
    for option in ("--out", "--report"):
        result = run("solve", PACKING, *SMALL, "--resume", kept, option, kept)
        assert (result.exit_code, kept.read_text()) == (2, before)
    assert run("solve", PACKING, *SMALL, "--resume", kept, "--result", kept).exit_code == 0


OUTPUTS: Final = [
    pytest.param(name, param.opts[-1], id=f"{name} {param.opts[-1]}")
    for name, command in all_commands()
    for param in command.params
    if isinstance(param.type, OutputPath)
]
ARGUMENTS: Final = {
    "solve": [PACKING],
    "solve FILE.vbp": [PACKING.parent / "bins.vbp"],
    "solve model_*.txt": [MODEL],
    "simulate": [FAILURES],
    "compare": [FAILURES, *ONCE],
}


@pytest.mark.parametrize(("name", "option"), OUTPUTS)
def test_outputs_that_can_have_no_such_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    words = name.split()[:1] if name.startswith("solve ") else name.split()
    for path, reason in (("x" * 300, "File name too long"), ("loop", "symbolic links form a loop")):
        result = run(*words, *ARGUMENTS.get(name, ()), option, path)
        assert (result.exit_code, result.stdout) == (2, "")
        (told,) = result.stderr.splitlines()
        assert told.startswith(f"Error: {path}: cannot be written: ")
        assert told.endswith(reason)
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


@pytest.mark.parametrize("option", ["--out", "--report"])
@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_an_output_that_can_not_be_written_is_told_before_the_replay(
    monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    def replay(*_: object) -> None:
        raise AssertionError("a replay has begun")

    monkeypatch.setattr(f"optsched.cli.offline.{command}_command._Run.play", replay)
    result = run(*reading(command, FAILURES), option, "/proc/a")
    assert (result.exit_code, result.stdout) == (1, "")
    (told,) = result.stderr.splitlines()
    assert told.startswith("Error: /proc/a: cannot be ")
    if option == "--out":
        device = run(*reading(command, FAILURES), option, "/dev/null")
        assert (
            device.stderr == "Error: /dev/null: cannot be created: it exists and is not a folder\n"
        )


@pytest.mark.parametrize("command", ["solve", "job run -f"])
@pytest.mark.parametrize("given", ["/dev/zero", None])
def test_a_standard_input_without_an_end_or_that_is_closed_is_refused(
    command: str, given: str | None
) -> None:
    program = f"{sys.executable} -m optsched.cli.main {command} -"
    redirect = "<&-" if given is None else f"<{given}"
    found = subprocess.run(
        ["sh", "-c", f"{program} {redirect}"], capture_output=True, text=True, timeout=60
    )
    reason = "is closed" if given is None else "is a device"
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"Error: the standard input: {reason}: name a file\n"


def test_an_archive_of_a_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.vbp"
    path.symlink_to("/dev/zero")
    result = run("solve", path)
    assert (result.exit_code, result.stderr) == (2, f"Error: {path}: is a device: name a file\n")


@pytest.mark.parametrize("more", [("--warm-up", "1000d"), ("--warm-up", "2h", "--until", "1h")])
@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_warm_up_that_leaves_no_job_to_measure_is_told(command: str, more: tuple[str]) -> None:
    remark = "failures: no job arrives between --warm-up and the end, so no job is measured"
    measured = run(*reading(command, FAILURES))
    result = run(*reading(command, FAILURES), *more)
    assert (measured.exit_code, result.exit_code) == (0, 0)
    assert (remark in measured.stderr, remark in result.stderr) == (False, True)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/stderr", "/dev/fd/0", "/dev/null"])
def test_devices_and_descriptors_are_written_in_place(name: str) -> None:
    """A rename to `/dev/stdout` would replace the link of the whole machine."""
    assert not can_be_replaced(Path(name))


@pytest.mark.parametrize("command", ["pack", "reassign"])
def test_benchmarks_print_one_thing(command: str) -> None:
    source = PACKING.parent / "bins.vbp" if command == "pack" else MODEL
    result = run(*reading(command, source), "-o", "json", "--out", "-")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "-o and --out - both write to the standard output" in result.stderr


def test_a_pod_list_from_a_pipe_has_no_node_list_beside_it() -> None:
    given = OPENB_PODS.encode()
    result = run("simulate", "-", "--format", "openb", *SMALL, given=given)
    assert result.exit_code == 2
    assert result.stderr == (
        "the standard input: its folder has no node list openb_node_list_gpu_node.csv\n"
    )
    taken = run("simulate", "-", "--format", "openb", "--nodes", FAILURES, *SMALL, given=given)
    assert (taken.exit_code, taken.stderr) == (0, "")


@pytest.mark.parametrize(
    ("header", "remedy"),
    [
        ("a,b,c", "give --format for a published trace (acme, gavel, helios, openb, pai, philly)"),
        (ACME.splitlines()[0], "its columns are those of acme: give --format acme"),
        (f"{ACME.splitlines()[0]},vc", "its columns are those of helios: give --format helios"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_csv_file_of_another_format_names_the_formats(
    tmp_path: Path, command: str, header: str, remedy: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{header}\n1,2,3\n")
    result = run(command, path, *SMALL)
    assert (result.exit_code, result.stdout) == (2, "")
    missing = "name, cpu_milli, memory_mib, num_gpu, gpu_milli"
    assert f"{path}: without --format, a CSV file is a pod list of openb" in result.stderr
    assert f"this file has no column {missing}; {remedy}" in result.stderr


def test_solve_says_that_a_csv_file_is_no_pod_list(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b,c\n1,2,3\n")
    result = run("solve", path, *SMALL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"{path}: is not a pod list of the openb trace: it has no column"
    )
    assert result.stderr.endswith("name a pod list of openb in CSV, or manifests in YAML or JSON\n")


def test_mistakes_in_the_nodes_of_a_replay_are_told(tmp_path: Path) -> None:
    trace, nodes = tmp_path / "a.csv", tmp_path / "nodes.yaml"
    trace.write_text(ACME)
    bad = NODE.replace("n1", "n2").replace("cpu: 8", "cpu: many")
    nodes.write_text(f"{NODE.replace('cpu: 8', 'cpu: 8, nvidia.com/gpu: 8')}---\n{bad}")
    line = ("simulate", trace, "--format", "acme", "--nodes", nodes, *SMALL)
    result = run(*line)
    assert result.exit_code == 0
    assert 'nodes.yaml:6: Node n2: status.allocatable[cpu]: "many"' in result.stderr
    nodes.write_text(SHARES.partition("---\n")[2])
    result = run(*line)
    assert (result.exit_code, f"{nodes}: contains no nodes" in result.stderr) == (2, True)


def test_a_snapshot_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    path, job = tmp_path / "a.yaml", tmp_path / "job.yaml"
    path.write_bytes(NODE.encode("utf-16"))
    job.write_text(JOB)
    result = run("what-if", "-f", job, "--snapshot", path, *SMALL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: a.yaml: is not UTF-8: byte 0 is 0xff\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", PACKING, "--out", "a", "--result", "./a"], "both write to the file"),
        (["solve", PACKING, "--out", "-", "--report", "-"], "both write to the standard output"),
        (["solve", PACKING, "--out", "-", "-o", "json"], "both write to the standard output"),
        (["solve", PACKING, "--out", "a/b", "--result", "a"], "a: --out needs a folder with this"),
        (
            ["simulate", FAILURES, "--out", "a", "--report", "a"],
            "a: --out needs a folder with this",
        ),
        (["compare", FAILURES, *ONCE, "--out", "a/b", "--report", "a"], "a: --out needs a folder"),
        (["solve", "/dev/zero"], "/dev/zero: is a device: name a file"),
        (["simulate", "/dev/zero"], "/dev/zero: is a device: name a file"),
        (["solve", PACKING, "--model", "/dev/zero"], "/dev/zero: is a device: name a file"),
        (["what-if", "-f", "/dev/zero"], "/dev/zero: is a device: name a file"),
        (["solve", PACKING, "--time-limit", "nan"], "write a number of seconds from 0 on"),
        (["solve", PACKING, "--time-limit", "inf"], "write a number of seconds from 0 on"),
        (["solve", PACKING, "--time-limit", "-1"], "write a number of seconds from 0 on"),
        (["solve", PACKING, "--time-limit", "1e30"], "1e30: write at most 1000000000 seconds"),
        (["solve", MODEL, "--time-limit", "9" * 30], ": write at most 1000000000 seconds"),
        (["solve", PACKING, "--time-limit", "a\nb"], "a\\nb: write a number of seconds"),
        (["solve", MODEL, "--steps", "9" * 400], "is not in the range"),
        (["solve", MODEL, "--workers", "9" * 400], "is not in the range"),
        (["solve", PACKING, "--time-limit", "1_0"], "write a number of seconds from 0 on"),
        (["solve", PACKING, "--time-limit", "\u0663"], "write a number of seconds from 0 on"),
        (["solve", PACKING, "--gap", "nan"], "is not a gap"),
        (["solve", PACKING, "--gap", "\u0661%"], "is not a gap"),
        (["solve", PACKING, "--seed", "-1"], "is not in the range"),
        (["simulate", FAILURES, "--seed", "-1"], "is not in the range"),
        (["simulate", FAILURES, "--out", "-"], "several files are written: name a folder"),
        (["simulate", FAILURES, "--period", "0s"], "0s: must be longer than zero"),
        (["simulate", FAILURES, "--until", "-1s"], "-1s: must be longer than zero"),
        (["simulate", FAILURES, "--period", "0d"], "0d: must be longer than zero"),
        (["simulate", FAILURES, "--warm-up", "-1d"], "-1d"),
        (["simulate", FAILURES, "--until", "9" * 18 + "d"], '999999999999999999d" is '),
        (["simulate", FAILURES, "--until", "9" * 5000 + "d"], "is not a duration"),
        (["simulate", FAILURES, "--until", "３d"], '"３d" is not a duration'),
        (["simulate", "gavel:load=nan"], "load: 'nan' is not a number"),
        (["simulate", "gavel:estimated=inf"], "estimated: 'inf' is not a number"),
        (["simulate", "gavel:load=0.\u0665"], "load: '0.\u0665' is not a number"),
        (["simulate", "gavel:jobs=1_0"], "jobs: '1_0' is not a whole number"),
        (["compare", FAILURES, "--model", "crater", "--model", "crater"], "more than once"),
        (["compare", FAILURES, FAILURES, "--model", "crater"], "more than once"),
        (["snapshot", "--every", "1e300"], "1e300: write at most 1000000000 seconds"),
        (["snapshot", "--every", "nan"], "write a number of seconds above 0"),
        (["simulat", FAILURES], "There is no command 'simulat'. Did you mean simulate?"),
        (["frobnicate"], "There is no command 'frobnicate'."),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert list(tmp_path.iterdir()) == []


# --- manifests -----------------------------------------------------------------------------------


def test_a_job_becomes_its_pod_group_and_pods(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(NODE + JOB)
    result = run("solve", path, *SMALL)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "default/train      3  n1 ×3" in result.stdout


def test_a_job_whose_pods_are_there_or_that_has_ended_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(NODE + JOB + "status: {state: {phase: Completed}}\n")
    result = run("solve", path, *SMALL)
    assert "job.yaml:6: batch.volcano.sh/v1alpha1 Job train is ignored" in result.stderr
    pod = """---
apiVersion: v1
kind: Pod
metadata: {name: train-w-0, annotations: {volcano.sh/job-name: train}}
spec: {schedulerName: volcano, containers: [{name: a, image: b}]}
"""
    path.write_text(NODE + JOB + pod)
    assert "×3" not in run("solve", path, *SMALL).stdout


def test_a_job_that_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(NODE + JOB.replace("minAvailable: 2", "minAvailable: two"))
    result = run("solve", path, *SMALL)
    assert 'job.yaml:6: Job default/train: spec.minAvailable: "two"' in result.stderr


def test_strict_decides_nothing_where_something_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    foreign = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
    path.write_text(NODE + JOB + foreign)
    assert run("solve", path, *SMALL).exit_code == 0
    result = run("solve", path, *SMALL, "--strict")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "c.yaml:16: v1 Secret s is ignored" in result.stderr
    path.write_text(NODE + JOB)
    assert run("solve", path, *SMALL, "--strict").exit_code == 0


def test_strict_says_first_that_nothing_is_decided(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(NODE + JOB + "---\n" + NODE)
    lines = run("solve", path, *SMALL, "--strict").stderr.splitlines()
    assert lines[0] == f"{path}: nothing is solved: --strict rejects 1 problem:"
    assert lines[1].endswith("occurs more than once; the last occurrence applies")
    assert len(lines) == 2


def test_half_a_gpu_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "half.yaml"
    path.write_text(NODE + JOB.replace("cpu: 1}", "nvidia.com/gpu: 500m}"))
    result = run("solve", path, *SMALL, "--strict")
    assert result.exit_code == 2
    assert "[nvidia.com/gpu]: " in result.stderr
    assert "is not a whole number of GPUs" in result.stderr


SHARES: Final = """\
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 64, memory: 64Gi, nvidia.com/gpu: 3, pods: 110}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: rich}
spec: {deserved: {cpu: 32, memory: 32Gi, nvidia.com/gpu: "RICH"}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: poor}
spec: {deserved: {cpu: 32, memory: 32Gi, nvidia.com/gpu: "POOR"}}
"""
POD: Final = """\
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: {name}}}
spec: {{minMember: 1, queue: {queue}}}
status: {{phase: {phase}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, annotations: {{scheduling.k8s.io/group-name: {name}}}}}
spec:
  schedulerName: volcano
  containers: [{{name: c, resources: {{requests: {{cpu: 1, nvidia.com/gpu: 1}}}}}}]
{more}
"""


@pytest.mark.parametrize(
    ("solver", "rich", "poor", "number"),
    [
        ("none", "2", "2", 1),
        ("none", "1.5", "2", 2),
        ("cpsat", "2", "2", 1),
        ("cpsat", "1.5", "2", 2),
        ("cpsat", "1", "1.5", 1),
    ],
)
def test_queues_share_whole_devices_where_they_deserve_parts(
    tmp_path: Path, solver: str, rich: str, poor: str, number: int
) -> None:
    """Three GPUs are in use: the queue that deserves 1.5 GPUs keeps one and reclaims one."""
    runs = {"phase": "Running", "more": "  nodeName: n\nstatus: {phase: Running}"}
    waits = {"phase": "Inqueue", "more": ""}
    pods = [POD.format(name=f"r{i}", queue="rich", **runs) for i in range(3)]
    pods += [POD.format(name=f"p{i}", queue="poor", **waits) for i in range(2)]
    path, out = tmp_path / "shares.yaml", tmp_path / "plan.json"
    path.write_text(SHARES.replace("RICH", rich).replace("POOR", poor) + "".join(pods))
    given = ("--model", "capacity-hierarchical", "--solver", solver, "--deterministic")
    assert run("solve", path, *given, "--out", out).exit_code == 0
    assert len(json.loads(out.read_text())["evictions"]) == number


def test_a_capability_with_a_part_of_a_device_holds_the_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "capability.yaml"
    limited = SHARES.replace("deserved", "capability").replace("RICH", "2").replace("POOR", "1.5")
    waits = {"phase": "Inqueue", "more": ""}
    pods = [POD.format(name=f"p{i}", queue="poor", **waits) for i in range(3)]
    path.write_text(limited + "".join(pods))
    result = run("solve", path, *SMALL, "-o", "json")
    assert len(json.loads(result.stdout)["plan"]["binds"]) == 1


@pytest.mark.parametrize("command", ["solve", "simulate"])
@pytest.mark.parametrize(
    ("given", "shown"), [("/dev/null", "/dev/null"), ("-", "the standard input")]
)
def test_errors_name_inputs_as_they_were_given(command: str, given: str, shown: str):
    ran = CliRunner().invoke(main, [command, given], input="")
    assert ran.exit_code == 2
    assert f"{shown}: nothing to schedule" in ran.output
    assert "optsched-" not in ran.output
