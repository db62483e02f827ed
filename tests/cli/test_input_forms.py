"""Every command reads equal results from a valid input, however the input is written or passed.

A command refuses an input that it cannot read, and names the input; see `REFUSED`. `NOT_TRIED`
lists the combinations that make no sense, each with its reason.
"""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from optsched.api.kinds import JOB_FLOW, JOB_TEMPLATE
from optsched.cli.commands import codes_of
from optsched.formats.files.yaml_text import Document, read_yaml
from optsched.kube.client.client import connect
from optsched.kube.serving.certificates import ServedCertificate
from tests.cli import test_bad_input as inputs
from tests.cli.test_bad_input import INPUTS, KUBECONFIG, PACKING, SUFFIXES, TRACE, Input
from tests.cli.test_compare import ONE_NODE
from tests.cli.test_exit_codes import FILES, filled
from tests.cli.test_flows import obj
from tests.cli.test_gpu_hours import PICTURE
from tests.cli.test_inputs import VBP
from tests.cli.test_reassign import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from click.testing import Result

    from optsched.kube.controllers.process import Settings as ControllerSettings
    from optsched.kube.scheduler.process import Settings as SchedulerSettings
    from optsched.kube.webhook.process import Settings as WebhookSettings
    from tests.cli.clusters import FakeCluster

__all__ = ["filled"]

ODD_NAME: Final = "größe-日本-\u202e"
"""A name with an umlaut, other scripts and a control character that turns text around."""


LONG_NAME: Final = "x" * 300


class Form(NamedTuple):
    """A file format with an example text. `name` is a part of the text that may be another name."""

    text: str
    name: str
    is_yaml: bool = True


def form_of(given: Input) -> str:
    """Return the name of the format that an input takes."""
    if given.option == "--filename":
        kinds = {"jobflow": "JobFlow", "jobtemplate": "JobTemplate"}
        return kinds.get(given.command.split()[0], "Job")
    return FORM_BY_INPUT.get((given.command, given.option)) or FORM_BY_OPTION[given.option]


FORM_BY_OPTION: Final[Mapping[str, str]] = {
    "--kubeconfig": "kubeconfig",
    "instance": "cluster",
    "--snapshot": "cluster",
    "trace": "trace",
    "traces": "trace",
    "--model": "model",
    "--config": "model",
    "--nodes": "nodes",
    "--admission-conf": "groups",
    "--tls-cert-file": "certificate",
    "--metrics-tls-cert-file": "certificate",
    "--tls-private-key-file": "key",
    "--metrics-tls-private-key-file": "key",
    "--ca-cert-file": "certificate",
    "--plugins-dir": "plugins",
    "--assignment": "assignment",
    "folder": "pictures",
    "files": "vbp",
    "--resume": "result",
}
FORM_BY_INPUT: Final = {("solve model_*.txt", "model"): "machines"}
ROOT: Final = Path(__file__).parents[2]
CREDENTIALS: Final = inputs.credentials()
GROUPS: Final = "resourceGroups: [{resourceGroup: gpu, schedulerName: volcano}]\n"
ASSIGNMENT: Final = "0 1 0\n"
PLUGIN: Final = (MODEL.parent / "plugins" / "per_node.py").read_text("utf-8")
FORMS: Final[Mapping[str, Form]] = {
    "kubeconfig": Form(KUBECONFIG.format(port=1), "team-a"),
    "Job": Form(FILES["Job"], "new"),
    "JobFlow": Form(FILES["JobFlow"], "new"),
    "JobTemplate": Form(FILES["JobTemplate"], "new"),
    "cluster": Form(PACKING.read_text("utf-8"), "gpu-1"),
    "trace": Form(TRACE.read_text("utf-8"), "research"),
    "model": Form((ROOT / "models" / "volcano-compatible.yaml").read_text("utf-8"), "gang"),
    "nodes": Form(ONE_NODE, "n}"),
    "groups": Form(GROUPS, "gpu"),
    "certificate": Form(CREDENTIALS.certificate.decode(), "", is_yaml=False),
    "key": Form(CREDENTIALS.key.decode(), "", is_yaml=False),
    "machines": Form(MODEL.read_text("utf-8"), "", is_yaml=False),
    "assignment": Form(ASSIGNMENT, "", is_yaml=False),
    "vbp": Form(VBP, "", is_yaml=False),
    "result": Form("", "gpu-1", is_yaml=False),
    "plugins": Form(PLUGIN, "", is_yaml=False),
    "pictures": Form(PICTURE.format(phase="Running", taken="2026-01-05T09:00:00Z"), "ann"),
}
"""One text by format. The result comes from `solve`."""


def as_json(text: str) -> str:
    values = [each.value for each in read_yaml(text) if isinstance(each, Document)]
    one = values[0] if len(values) == 1 else {"apiVersion": "v1", "kind": "List", "items": values}
    return json.dumps(one)


def as_list(text: str) -> str:
    """Return the objects of a text as one `List`, or the items of a `List` as documents."""
    values = [each.value for each in read_yaml(text) if isinstance(each, Document)]
    if len(values) == 1 and values[0].get("kind") == "List":
        return "---\n".join(json.dumps(each) + "\n" for each in values[0]["items"])
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": values})


WRITTEN: Final[Mapping[str, Callable[[str], str]]] = {
    "as it is": str,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "BOM": lambda text: "\ufeff" + text,
    "JSON": as_json,
    "List": as_list,
    "empty documents": lambda text: f"---\n# none\n---\n{text}---\n",
}
STRUCTURED: Final = ("JSON", "List", "empty documents")
FOLDERS: Final = ("plugins", "pictures")
WAYS: Final = (*WRITTEN, "pipe", "-", "twice", "names", "long name")

REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "kubeconfig": ("List", "empty documents", "-"),
    "trace": ("List",),
    "model": ("List", "empty documents"),
    "groups": ("List", "pipe", "-"),
    "certificate": ("pipe", "-"),
    "key": ("pipe", "-"),
    "vbp": ("-",),
}
"""Ways in which a format is not read.

A kubeconfig is one mapping, and kubectl takes no `-` for it either. Services read groups,
certificates and keys again, which pipes do not allow. Benchmarks are known by their file's name.
"""

NOT_TRIED: Final[Mapping[str, str]] = {
    "--dask-ca": "valid ones connect to a cluster of Dask: tests/study has these",
    "--dask-cert": "as above",
    "--dask-key": "as above",
}


KUBECONFIG_READERS: Final = ("scheduler", "controllers", "webhook", "job list")
"""Commands that try a kubeconfig in every way; others share the option of `job list`."""


def ways_of(given: Input) -> tuple[str, ...]:
    """Return the ways to write or pass an input that make sense for its format."""
    name = form_of(given)
    form = FORMS[name]
    return tuple(
        way
        for way in WAYS[1:]
        if (form.is_yaml or way not in (*STRUCTURED, "twice"))
        and (form.name or way not in ("names", "long name"))
        and (name not in FOLDERS or way in ("CRLF", "BOM", "names", "long name"))
        # Standard input counts as objects of a cluster, and a cluster has other options.
        and (name != "machines" or way != "-")
        and (name != "kubeconfig" or given.command in KUBECONFIG_READERS or way in ("BOM", "pipe"))
    )


SLOW: Final = "solve model_*.txt"
"""A command that starts a separate process for each solve."""

FIRST: Final = {
    form_of(given): given
    for given in reversed(INPUTS)
    if given.option not in NOT_TRIED and given.command != SLOW
}
"""The first input of each format, which is tried in every way by default."""


def is_quick(number: int, given: Input, way: str) -> bool:
    """Return whether a way is tried by default: all of the first input, two of every other."""
    ways = ways_of(given)
    if given.command == SLOW:
        return False
    return given == FIRST[form_of(given)] or way in ("pipe", ways[number % len(ways)])


ROWS: Final = [
    pytest.param(
        given,
        way,
        id=f"{given.command} {given.option}-{way}",
        marks=() if is_quick(number, given, way) else pytest.mark.nightly,
    )
    for number, given in enumerate(INPUTS)
    if given.option not in NOT_TRIED
    for way in ways_of(given)
]


def test_what_is_not_tried_is_there() -> None:
    assert NOT_TRIED.keys() <= {given.option for given in INPUTS}
    assert all(NOT_TRIED.values())
    assert REFUSED.keys() <= FORMS.keys()


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let services read their inputs, and stop them before they serve."""

    async def read(
        settings: SchedulerSettings | ControllerSettings | WebhookSettings,
    ) -> None:
        async with connect(settings.kubeconfig) as client:
            print(client.server)
        secure = settings.metrics
        files = [getattr(settings, "files", None), None if secure is None else secure.files]
        for each in filter(None, files):
            await ServedCertificate("test").load_files(each)

    for name in ("scheduler", "controllers", "webhook"):
        monkeypatch.setattr(f"optsched.kube.{name}.process.run", read)


@pytest.fixture(scope="module")
def result_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a result file of `solve` that a later solve can resume."""
    path = tmp_path_factory.mktemp("result") / "result.json"
    words = ["solve", str(PACKING), "--model", "volcano-compatible", "--solver", "none"]
    assert inputs.CliRunner().invoke(inputs.main, [*words, "--result", str(path)]).exit_code == 0
    return path.read_text("utf-8")


def rename(text: str, old: str, new: str) -> str:
    """Return a text with another name, with a closing brace if the old name ends with one."""
    return text.replace(old, new + ("}" if old.endswith("}") else ""))


def play(given: Input, way: str, text: str, tmp_path: Path) -> Result:
    """Run a command with a valid text that is written or passed in the given way."""
    form = FORMS[form_of(given)]
    if way == "names":
        text = rename(text, form.name, ODD_NAME)
    elif way == "long name":
        text = rename(text, form.name, LONG_NAME)
    elif way == "twice":
        text = f"{text}---\n{text}"
    data = WRITTEN.get(way, str)(text).encode()
    name = "input" + ("" if given.option.startswith("-") else SUFFIXES.get(given.command, ""))
    folder = {"plugins": "rule.py", "pictures": "snapshot-1.yaml"}.get(form_of(given))
    if folder is not None:
        Path(name).mkdir(exist_ok=True)
        (Path(name) / folder).write_bytes(data)
    elif way not in ("pipe", "-"):
        Path(name).write_bytes(data)
    with inputs.piped(Path(name), data) if way == "pipe" else nullcontext():
        return inputs.run(given, "-" if way == "-" else name, tmp_path / "others", data)


def plain(text: str) -> str:
    """Return a text without numbers, spaces and input names."""
    text = re.sub(r"(the )?standard input\b|(?<![\w-])-(?=[:, ])", "input", text)
    text = re.sub(r"input\.(vbp|txt|yaml)", "input", text)
    return re.sub(r"([\d.]|\s|[─━])+", "#", text)


def outcome(given: Input, result: Result) -> tuple[int, str]:
    """Return exit code and output; omit the output of a solve, which depends on time."""
    searches = given.command.startswith("solve ")
    return result.exit_code, "" if searches else plain(result.stdout)


PLAIN: Final[dict[Input, tuple[int, str]]] = {}
"""What commands did with inputs as they are."""


@pytest.mark.parametrize(("given", "way"), ROWS)
@pytest.mark.usefixtures("services")
def test_valid_inputs_are_read_in_every_way(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    result_text: str,
    given: Input,
    way: str,
) -> None:
    text = result_text if form_of(given) == "result" else FORMS[form_of(given)].text
    for number, each in enumerate(("as it is", way)):
        if number == 0 and given in PLAIN:
            continue
        places = tmp_path / str(number)
        places.mkdir()
        monkeypatch.chdir(places)
        if given.option != "--kubeconfig":
            reset(request.getfixturevalue("filled"), given)
        result = play(given, each, text, tmp_path)
        assert isinstance(result.exception, SystemExit | None), (result.exception, result.output)
        assert "Traceback" not in result.output
        if number == 0:
            expected = 6 if given.option == "--kubeconfig" and 6 in codes_of(given.command) else 0
            assert result.exit_code == expected, result.output
            PLAIN[given] = outcome(given, result)
    assert result.exit_code in codes_of(given.command), result.output
    if way in REFUSED.get(form_of(given), ()):
        assert result.exit_code not in (0, 8, 9), result.output
        assert "input" in result.stderr or "-: " in result.stderr, result.stderr
    elif way in ("twice", "names", "long name"):
        named = ("input", ODD_NAME, LONG_NAME, "größe", "team", "new", "127.0.0.1")
        assert result.exit_code == 0 or any(word in result.output for word in named), result.output
    else:
        assert outcome(given, result) == PLAIN[given], result.output


def reset(cluster: FakeCluster, given: Input) -> None:
    """Delete the objects that the last command created, and restore those that it deleted."""
    for ref in [ref for ref in cluster.objects if ref.name == "new"]:
        del cluster.objects[ref]
    if given.command in ("jobflow delete", "jobtemplate delete"):
        for kind in (JOB_FLOW, JOB_TEMPLATE):
            cluster.put(obj(kind, "new"))
