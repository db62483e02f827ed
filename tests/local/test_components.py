from __future__ import annotations

from pathlib import Path

import pytest

from optsched.local.assets import BINARIES, Assets
from optsched.local.components import (
    COMPONENTS,
    WITH_PORT,
    Layout,
    Options,
    State,
    commands,
)

ASSETS = Assets({binary.name: Path("/bin") / binary.name for binary in BINARIES})
LAYOUT = Layout(Path("/plane"))
PORTS = {name: 10000 + index for index, name in enumerate(WITH_PORT)}


def test_only_loopback_is_listened_on() -> None:
    lines = commands(ASSETS, LAYOUT, PORTS, Options(scheduler=True))
    assert set(lines) == set(COMPONENTS)
    for name, port in PORTS.items():
        assert any(argument.endswith(str(port)) for argument in lines[name])
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        assert "--bind-address=127.0.0.1" in lines[name]
    assert f"--server-address=127.0.0.1:{PORTS['kwok']}" in lines["kwok"]
    assert "--listen-client-urls=unix:///plane/etcd/client.sock" in lines["etcd"]


def test_the_scheduler_is_left_out_unless_asked_for() -> None:
    assert "kube-scheduler" not in commands(ASSETS, LAYOUT, PORTS, Options())


def test_extra_arguments_come_last() -> None:
    options = Options(extra_args={"kube-apiserver": ["--v=4"]})
    assert commands(ASSETS, LAYOUT, PORTS, options)["kube-apiserver"][-1] == "--v=4"


def test_extra_arguments_are_for_known_components() -> None:
    with pytest.raises(ValueError, match=r"no component \['kubelet'\]; there are \['etcd'"):
        Options(extra_args={"kubelet": ["--v=4"]})


def test_every_command_line_is_this_planes_own() -> None:
    here = commands(ASSETS, LAYOUT, PORTS, Options(scheduler=True))
    there = commands(ASSETS, Layout(Path("/other")), PORTS, Options(scheduler=True))
    assert all(here[name][1:] != there[name][1:] for name in COMPONENTS)


def test_a_state_survives_its_file() -> None:
    state = State(
        kubectl="/bin/kubectl",
        ports=PORTS,
        commands=commands(ASSETS, LAYOUT, PORTS, Options()),
    )
    assert State.from_json(state.to_json()) == state
    assert state.server == "https://127.0.0.1:10000"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kubectl": "k", "ports": 1}', "null"])
def test_anything_else_is_no_state(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        State.from_json(text)


def test_a_user_called_like_a_component_has_a_file_of_their_own() -> None:
    assert LAYOUT.user_kubeconfig("kwok") != LAYOUT.kubeconfig("kwok")
    assert LAYOUT.user_kubeconfig("system:a/b") == Path("/plane/kubeconfig/user-system-a-b")
