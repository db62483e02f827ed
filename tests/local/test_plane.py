"""Tests of the state of a control plane; tests/e2e uses real components."""

from __future__ import annotations

from pathlib import Path

import pytest

from optsched.local import plane as plane_module
from optsched.local.assets import BINARIES, Assets
from optsched.local.components import WITH_PORT, Layout, Lifetime, Options, State
from optsched.local.plane import ControlPlane, PlaneError, wipe

MISSING = Assets({binary.name: Path("/nowhere") / binary.name for binary in BINARIES})


def remember(directory: Path, commands: dict[str, tuple[str, ...]]) -> None:
    state = State(
        kubectl="kubectl",
        ports=dict.fromkeys(WITH_PORT, 1),
        commands=commands,
    )
    Layout(directory).state.write_text(state.to_json())


def test_there_is_nothing_to_attach_to(tmp_path: Path) -> None:
    with pytest.raises(PlaneError, match=f"ever started in {tmp_path}"):
        ControlPlane.attach(tmp_path)


def test_a_broken_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(PlaneError, match=r"state\.json"):
        ControlPlane.attach(tmp_path)


def test_a_plane_that_is_gone_can_be_stopped(tmp_path: Path) -> None:
    remember(tmp_path, {"etcd": ("etcd", f"--data-dir={tmp_path}")})
    plane = ControlPlane.attach(tmp_path)
    assert plane.pids == {}
    assert not plane.is_ready()
    plane.stop()
    plane.kill("etcd")


def test_an_unknown_component_is_named(tmp_path: Path) -> None:
    remember(tmp_path, {"etcd": ("etcd", f"--data-dir={tmp_path}")})
    with pytest.raises(PlaneError, match="no component 'kubelet' in this plane: etcd"):
        ControlPlane.attach(tmp_path).kill("kubelet")


def test_too_long_a_path_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(PlaneError, match="107 bytes, the limit for Unix sockets"):
        ControlPlane.start(tmp_path / ("x" * 100), MISSING)


def test_a_start_that_fails_leaves_only_files(tmp_path: Path) -> None:
    with pytest.raises(PlaneError, match="etcd cannot be started: /nowhere/etcd: No such file"):
        ControlPlane.start(tmp_path, MISSING, Options())
    plane = ControlPlane.attach(tmp_path)
    assert plane.pids == {}
    assert plane.components[:2] == ("etcd", "kube-apiserver")
    wipe(tmp_path)
    assert not tmp_path.exists()


def test_definitions_are_there_before_controllers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []

    def install(_: object, folder: Path) -> tuple[str, ...]:
        steps.append(folder)
        return ("things.example",)

    monkeypatch.setattr(ControlPlane, "_start", lambda _, names: steps.append(tuple(names)))
    monkeypatch.setattr(plane_module, "install_crds", install)
    options = Options(lifetime=Lifetime.DETACHED, definitions=tmp_path / "crds")
    plane = ControlPlane.start(tmp_path, MISSING, options)
    others = ("kube-controller-manager", "kwok")
    assert steps == [("etcd",), ("kube-apiserver",), tmp_path / "crds", others]
    assert plane.definitions == ("things.example",)


def test_wiping_spares_what_is_not_its_own(tmp_path: Path) -> None:
    remember(tmp_path, {})
    (tmp_path / "thesis.tex").write_text("precious")
    wipe(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
