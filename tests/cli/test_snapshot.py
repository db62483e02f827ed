"""Tests of the files and exit codes of `optsched snapshot`; tests/e2e uses a real cluster."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from optsched.cli.main import main
from optsched.formats.snapshots.instance_files import read_instance
from optsched.kube.client import client
from optsched.kube.client.errors import Forbidden
from tests.formats.objects import group, node, pod
from tests.kube.fakes import FakeApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """Return the fake cluster to which the command connects."""
    stand_in = FakeApi(node("n1"), group("g"), pod("p"))

    @asynccontextmanager
    async def connect(kubeconfig: str, *_: object) -> AsyncIterator[FakeApi]:
        assert kubeconfig == "cluster.conf"
        await asyncio.sleep(0)
        yield stand_in

    monkeypatch.setattr(client, "connect", connect)
    return stand_in


def snapshot(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["snapshot", *map(str, arguments)])


@pytest.mark.usefixtures("api")
def test_it_writes_yaml_to_the_standard_output(tmp_path: Path) -> None:
    result = snapshot("--kubeconfig", "cluster.conf")
    assert result.exit_code == 0
    assert result.stderr == "written: 1 Node, 1 Pod, 1 PodGroup, 1 Snapshot\n"
    (tmp_path / "a.yaml").write_text(result.stdout)
    read = read_instance(tmp_path / "a.yaml")
    assert read.problems == ()
    assert [n.name for n in read.snapshot.nodes] == ["n1"]


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json"])
def test_the_ending_of_a_file_decides(tmp_path: Path, name: str) -> None:
    result = snapshot("--kubeconfig", "cluster.conf", "--out", tmp_path / name)
    assert (result.exit_code, result.stdout) == (0, "")
    text = (tmp_path / name).read_text()
    assert text.startswith("{" if name == "a.json" else "apiVersion: v1\nitems:\n")
    assert len(read_instance(tmp_path / name).snapshot.gangs) == 2


def test_another_ending_is_refused_before_anything_is_asked(tmp_path: Path, api: FakeApi) -> None:
    result = snapshot("--kubeconfig", "cluster.conf", "--out", tmp_path / "a.txt")
    assert result.exit_code == 2
    assert "objects are written to files that end in .yaml, .yml, .json" in result.stderr
    assert api.calls == []


def test_what_the_server_refuses_is_told(tmp_path: Path, api: FakeApi) -> None:
    api.refuse("list", Forbidden(403, "Forbidden", "nodes is forbidden"))
    result = snapshot("--kubeconfig", "cluster.conf", "--out", tmp_path / "a.yaml")
    assert result.exit_code == 5
    assert result.stderr == "Error: 403 Forbidden: nodes is forbidden\n"
    assert not (tmp_path / "a.yaml").exists()


@pytest.mark.usefixtures("api")
def test_a_file_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.yaml"
    result = snapshot("--kubeconfig", "cluster.conf", "--out", path)
    assert result.exit_code == 1
    assert result.stderr == f"Error: {path}: No such file or directory\n"


def test_without_a_cluster_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"kind": "Config"}))
    result = snapshot("--kubeconfig", path)
    assert result.exit_code == 6
    assert result.stderr.startswith(f"Error: {path} cannot be used: ")


@pytest.mark.usefixtures("api")
def test_pictures_of_a_cluster_are_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "watched"
    arguments = ("--kubeconfig", "cluster.conf", "--record", folder, "--every", "0.001")
    result = snapshot(*arguments, "--times", "2")
    assert result.exit_code == 0
    again = snapshot(*arguments, "--times", "1")
    assert again.exit_code == 0
    assert sorted(p.name for p in folder.iterdir()) == [
        f"snapshot-00000{i}.yaml" for i in (1, 2, 3)
    ]
    played = CliRunner().invoke(main, ["simulate", str(folder), "--solver", "none", "-o", "json"])
    assert played.exit_code == 0
    assert json.loads(played.stdout)["trace"]["name"] == "watched"
    both = snapshot("--record", folder, "--out", tmp_path / "a.yaml")
    assert both.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--every", "5"), "--every is valid only with --record"),
        (("--times", "5"), "--times is valid only with --record"),
        (("--record", "{folder}", "--out", "-"), "--out writes one snapshot, --record many"),
    ],
)
def test_options_without_effect_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    folder = tmp_path / "taken"
    result = snapshot(*(each.format(folder=folder) for each in arguments))
    assert (result.exit_code, result.stdout, folder.exists()) == (2, "", False)
    assert message in result.stderr
