"""Manifest files: the commands accept those of guides and report the position of each mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from optsched.api.kinds import JOB, JOB_FLOW, JOB_TEMPLATE
from optsched.cli.base.connection import Failure
from optsched.cli.live.manifests import read_manifests
from optsched.formats.files.yaml_text import Document, read_yaml
from tests.support.shared import found

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.api.kinds import Kind

KINDS = (JOB, JOB_FLOW, JOB_TEMPLATE)


def kinds_in(path: Path) -> set[tuple[str, str]]:
    documents = (d for d in read_yaml(path.read_text()) if isinstance(d, Document))
    objects = [d.value for d in documents if isinstance(d.value, dict)]
    return {(str(obj.get("apiVersion")), str(obj.get("kind"))) for obj in objects}


FILES = [
    pytest.param(path, kind, id=path.stem)
    for path in found("manifests/**/*.yaml")
    for kind in KINDS
    if kinds_in(path) == {(kind.api_version, kind.kind)}
]


@pytest.mark.skipif(not FILES, reason="the manifests of guides are not beside the project")
@pytest.mark.parametrize(("path", "kind"), FILES)
def test_manifests_of_guides_are_taken_without_a_remark(path: Path, kind: Kind) -> None:
    manifests = read_manifests(str(path), kind)
    assert manifests
    assert [remark for manifest in manifests for remark in manifest.remarks] == []


LIST = """\
kind: List
items:
  - apiVersion: batch.volcano.sh/v1alpha1
    kind: Job
    metadata: {name: a}
    spec: {tasks: [{replicas: 1, template: {}}]}
  - apiVersion: batch.volcano.sh/v1
    kind: Job
    metadata: {name: b}
  - apiVersion: batch.volcano.sh/v1alpha1
    kind: Job
    metadata: {namespace: x}
  - just a text
"""


def failure(path: Path) -> list[str]:
    with pytest.raises(Failure) as caught:
        read_manifests(str(path), JOB)
    assert caught.value.exit_code == 2
    return caught.value.message.replace(str(path), "F").splitlines()


def test_items_of_a_list_have_their_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(LIST)
    version, name, text = failure(path)
    assert version == (
        'F:7: apiVersion: "batch.volcano.sh/v1" is not expected here: write'
        " batch.volcano.sh/v1alpha1"
    )
    assert name.startswith("F:12: Job: metadata.name is missing")
    assert text == 'F:13: "just a text" is not an object: a Job is expected'


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n---\n"])
def test_a_file_without_a_job_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(text)
    assert failure(path) == ["F: contains no Job"]


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "image.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert failure(path) == ["F: is not UTF-8 text"]
    assert failure(tmp_path) == ["F: is a folder: name a file in it"]
