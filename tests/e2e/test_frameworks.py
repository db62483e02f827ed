"""The samples of the framework pages run unmodified with all components.

The tests run every command of a page and compare its output with the page. The tests simulate the
operators of other projects.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path, object_path
from tests.support.jobs import documents
from tests.support.operators import GROUP, Operators
from tests.support.pages import ROOT, agrees, examples, fences, run
from tests.support.together import Together

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.local.assets import Assets
    from optsched.local.plane import ControlPlane
    from tests.support.api import Raw

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("frameworks")]

PAGES = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
SAMPLES = ROOT / "deploy" / "samples"
RANKS_S = 120


@pytest.fixture(scope="module")
def cluster(
    own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together]:
    folder = tmp_path_factory.mktemp("frameworks")
    with Together(own_plane, folder) as running, Operators(own_plane.kubeconfig):
        yield running


@pytest.fixture
def together(cluster: Together) -> Iterator[Together]:
    """Yield a cluster with all components and without other objects."""
    yield cluster
    cluster.clear()


@pytest.fixture(scope="module")
def reader(
    assets: Assets, own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """Return the environment of a reader who has installed all components on a cluster."""
    commands = tmp_path_factory.mktemp("bin")
    (commands / "kubectl").symlink_to(assets.paths["kubectl"])
    (commands / "vcctl").symlink_to(Path(sys.executable).with_name("optsched"))
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {"KUBECONFIG": str(own_plane.kubeconfig), "PATH": path}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_is_shown(
    together: Together, reader: Mapping[str, str], page: Path
) -> None:
    assert together.phase  # the fixture clears the cluster afterwards
    shown = [example for block in fences(page, "console") for example in examples(block)]
    printed = run([example.command for example in shown], reader)
    for example, output in zip(shown, printed, strict=True):
        assert agrees(output, example.output), f"$ {example.command}\n{output}"


def test_spark_fills_the_podgroup_of_its_template(together: Together) -> None:
    [template] = documents(SAMPLES / "spark-podgroup.yaml")
    body = {**template, "metadata": {"name": "spark-1f0c-podgroup"}}
    together.api.post(collection_path(kinds.POD_GROUP, "default"), body)
    # The driver comes first, because it creates the executors once it runs.
    names = ["driver", *(f"exec-{i}" for i in range(1, 5))]
    for name in names:
        together.api.post(
            collection_path(kinds.POD, "default"), member(name, "spark-1f0c-podgroup")
        )
        together.await_(lambda name=name: phase_of(together, name) == "Running", f"{name} runs")
    phases = lambda: [g.get("status", {}).get("phase") for g in together.groups()]  # noqa: E731
    together.await_(lambda: phases() == ["Running"], "its PodGroup runs")


def member(name: str, group: str) -> Raw:
    """Return a pod as Spark creates it: with the scheduler's name and its PodGroup."""
    container = {"name": "spark", "image": "spark", "resources": {"requests": {"cpu": "1"}}}
    return {
        "metadata": {"name": name, "annotations": {GROUP: group}},
        "spec": {"schedulerName": "volcano", "restartPolicy": "Never", "containers": [container]},
    }


def phase_of(together: Together, pod: str) -> str:
    found = together.api.get(object_path(kinds.POD, "default", pod))
    return str(found["status"].get("phase"))


# --- ranks that add up their numbers -------------------------------------------------------------

ADDING = (
    "all-reduce",
    pytest.param(
        "pytorch",
        marks=pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    ),
)


@pytest.mark.parametrize("sample", ADDING)
def test_three_ranks_add_up_their_numbers(together: Together, sample: str) -> None:
    together.run_all(SAMPLES / f"{sample}.yaml")
    pods = together.pods(sample)
    hosts = addresses(together, sample)
    ranks = [begun(container_of(pod), variables(together, pod), hosts) for pod in pods.values()]
    said = sorted(rank.communicate(timeout=RANKS_S)[0].strip() for rank in ranks)
    assert said == [f"rank {rank} of 3: the sum is 6" for rank in range(3)]
    together.end(f"{sample}-master-0")
    together.await_phase("Completed", sample)


def container_of(pod: Raw) -> Raw:
    """Return the only container of a pod."""
    [container] = pod["spec"]["containers"]
    return dict(container)


def variables(together: Together, pod: Raw) -> dict[str, str]:
    """Return the environment of a pod's container, as its kubelet resolves it."""
    found = {}
    for each in container_of(pod)["env"]:
        key = each.get("valueFrom", {}).get("configMapKeyRef")
        found[each["name"]] = config(together, key["name"])[key["key"]] if key else each["value"]
    return found


def config(together: Together, name: str) -> dict[str, str]:
    """Return the data of a ConfigMap."""
    return dict(together.api.get(f"/api/v1/namespaces/default/configmaps/{name}")["data"])


def addresses(together: Together, job: str) -> dict[str, str]:
    """Return a loopback address for each host of a job.

    The addresses are random, because the samples use fixed ports.
    """
    files = {name: text for name, text in config(together, f"{job}-svc").items() if ".host" in name}
    hosts = [host for text in files.values() for host in text.split()]
    net = f"127.{random.randrange(1, 255)}.{random.randrange(255)}"
    return {host: f"{net}.{number}" for number, host in enumerate(hosts, start=1)}


def begun(
    container: Raw, environment: Mapping[str, str], hosts: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start the command of a container as a process with the container's environment."""
    found = {name: hosts.get(value, value) for name, value in environment.items()}
    return subprocess.Popen(
        [*container["command"], *container.get("args", ())],
        env={**found, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"},
        stdout=subprocess.PIPE,
        text=True,
    )
