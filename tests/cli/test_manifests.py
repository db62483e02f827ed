"""Commands on a cluster refuse odd files and arguments with one line each, and send no request."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from optsched.api.kinds import JOB, JOB_FLOW, JOB_TEMPLATE
from tests.cli.clusters import CONTEXT, FakeCluster, optsched
from tests.cli.test_exit_codes import FLOW_FILE, JOB_FILE, TEMPLATE_FILE
from tests.cli.test_inputs import CONTENTS

if TYPE_CHECKING:
    from click.testing import Result

    from optsched.api.kinds import Kind

READERS: Final = {
    "job run": (JOB, JOB_FILE),
    "jobflow create": (JOB_FLOW, FLOW_FILE),
    "jobflow delete": (JOB_FLOW, FLOW_FILE),
    "jobtemplate create": (JOB_TEMPLATE, TEMPLATE_FILE),
    "jobtemplate delete": (JOB_TEMPLATE, TEMPLATE_FILE),
    "what-if": (JOB, JOB_FILE),
}
"""Commands that read manifests, of which kind, and one that is right."""

HEAD: Final = b"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n"
ODD: Final = {
    **CONTENTS,
    "UTF-16": JOB_FILE.encode("utf-16"),
    "Latin-1": JOB_FILE.replace("new", "né").encode("latin-1"),
    "List of a word": b"apiVersion: v1\nkind: List\nitems: hello\n",
    "List of a number": b"apiVersion: v1\nkind: List\nitems: 3\n",
    "List of a mapping": b"apiVersion: v1\nkind: List\nitems: {a: b}\n",
    "List of words": b"apiVersion: v1\nkind: List\nitems: [hello]\n",
    "List in a List": b"kind: List\nitems: [{apiVersion: v1, kind: List, items: [1]}]\n",
    "metadata a word": HEAD + b"metadata: hello\n",
    "metadata a list": HEAD + b"metadata: [hello]\n",
    "name a list": HEAD + b"metadata: {name: [1]}\n",
    "name a number": HEAD + b"metadata: {name: 12}\n",
    "no name": HEAD + b"metadata: {generateName: a-}\n",
    "no kind": b"apiVersion: batch.volcano.sh/v1alpha1\nmetadata: {name: a}\n",
    "broken": b"a: [\n",
    "tabs": b"a:\n\tb: 1\n",
    "tag": b"!!python/object/apply:os.system ['true']\n",
    "JSON cut off": b'{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"',
    "half a letter": b'{"metadata": {"name": "\\ud800"}}',
}


def ask(command: str, *arguments: object, given: bytes | None = None) -> Result:
    more = ("--model", "volcano-compatible") if command == "what-if" else ()
    return optsched(*command.split(), *more, *arguments, input=given)


@pytest.mark.parametrize("content", ODD)
@pytest.mark.parametrize("command", READERS)
def test_contents_that_mean_nothing_are_refused(
    cluster: FakeCluster, tmp_path: Path, command: str, content: str
) -> None:
    path = tmp_path / f"{'ü' * 40}[b].yaml"
    path.write_bytes(ODD[content])
    result = ask(command, "-f", path)
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    told = result.stderr.removeprefix("Error: ").splitlines()
    assert told
    assert all(line.startswith(f"{path}:") for line in told), told
    assert (result.stdout, cluster.calls) == ("", [])
    assert path.read_bytes() == ODD[content]
    piped = ask(command, "-f", "-", given=ODD[content])
    assert piped.exit_code == 2
    assert piped.stderr == result.stderr.replace(str(path), "standard input")


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("gone", "gone: there is no such file"),
        ("folder", "folder: is a folder: name a file in it"),
        ("locked", "locked: cannot be read: Permission denied"),
        (
            "https://example.org/x",
            "https://example.org/x: is a URL: download it, and name the file",
        ),
        ("x" * 300, f"{'x' * 300}: cannot be read: File name too long"),
        ("a\0b", "'a\\x00b': is not a path: it contains a NUL"),
    ],
)
def test_places_that_can_not_be_read_are_refused(
    cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    source: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    read = Path.read_bytes

    def locked(path: Path) -> bytes:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", locked)
    result = ask(command, "-f", source)
    assert (result.exit_code, result.stderr) == (2, f"Error: {sentence}\n")
    assert cluster.calls == []


def forms(text: str, kind: Kind) -> dict[str, bytes]:
    """Return one object in every valid file form, keyed by the form's name."""
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": "new"},
        "spec": {"flows": [{"name": "a"}]} if kind == JOB_FLOW else SPEC,
    }
    listed = {"apiVersion": "v1", "kind": "List", "items": [body]}
    return {
        "YAML": text.encode(),
        "BOM": b"\xef\xbb\xbf" + text.encode(),
        "CRLF": text.replace("\n", "\r\n").encode(),
        "JSON": json.dumps(body).encode(),
        "JSON List": json.dumps(listed).encode(),
        "several": f"---\n# nothing\n---\n{text}---\n{text.replace('new', 'next')}".encode(),
    }


TEMPLATE: Final = {"spec": {"containers": [{"name": "m", "image": "i"}]}}
SPEC: Final = {"tasks": [{"name": "a", "replicas": 1, "template": TEMPLATE}]}


@pytest.mark.parametrize("form", forms(JOB_FILE, JOB))
@pytest.mark.parametrize("command", ["job run", "jobflow create", "jobtemplate create"])
def test_every_form_is_read_from_files_pipes_and_the_standard_input(
    cluster: FakeCluster, tmp_path: Path, command: str, form: str
) -> None:
    kind, text = READERS[command]
    content = forms(text, kind)[form]
    path, fifo = tmp_path / "o.yaml", tmp_path / "fifo"
    path.write_bytes(content)
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(content,))
    writer.start()
    names = {"new", "next"} if form == "several" else {"new"}
    for source in (path, fifo, "-"):
        result = ask(command, "-f", source, given=content if source == "-" else None)
        assert result.exit_code == 0, result.output
        assert {obj["metadata"]["name"] for obj in cluster.of(kind)} == names
        cluster.objects.clear()
    writer.join()


LONG: Final = ("x" * 300, "töst-☃", "a b", "[b]x", "-x", "A.B_C")


@pytest.mark.parametrize("name", LONG)
def test_names_that_no_server_has_are_told_as_they_are(cluster: FakeCluster, name: str) -> None:
    result = optsched("job", "view", "-N", name)
    assert result.exit_code == 3
    assert result.stderr == f"Error: job {name} does not exist in namespace {CONTEXT}\n"
    assert optsched("queue", "get", "-N", name).exit_code == 3
    assert optsched("job", "list", "-n", name).stderr == f"Error: namespace {name} does not exist\n"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "\u202eb", "a\0b"])
def test_names_that_are_no_text_are_refused(cluster: FakeCluster, name: str) -> None:
    for arguments in (
        ["job", "view", name],
        ["queue", "delete", name],
        ["job", "list", "-n", name],
    ):
        result = optsched(*arguments)
        assert result.exit_code == 2
        assert f"{name!a} is not an object name" in " ".join(result.stderr.split())
    assert cluster.calls == []
