"""The commands and output on the pages about clusters match a reader's own cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from optsched.local.assets import cache_directory
from tests.support.pages import ROOT, agrees, examples, fences, run
from tests.support.webhooks import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from optsched.local.assets import Assets

pytestmark = pytest.mark.e2e

PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("cli", "frameworks", "local", "scheduler", "snapshot")),
)
BLOCKS = [(page, i) for page in PAGES for i in range(len(fences(ROOT / page, "console")))]
UP = (
    "optsched local up --nodes 4 2>&1",
    "export KUBECONFIG=$(optsched local kubeconfig)",
    "kubectl wait --for=condition=Ready node --all",
)
GOES_BEFORE = {("docs/local.md", 1): UP}
"""What a reader has done who comes to a block."""


@pytest.fixture
def machine(
    assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """Return the environment of a reader who has kubectl and a filled build cache."""
    cache, commands = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("bin")
    (cache / "bin").symlink_to(cache_directory(os.environ) / "bin")
    (commands / "kubectl").symlink_to(assets.paths["kubectl"])
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment = {"OPTSCHED_CACHE": str(cache), "PATH": path}
    yield environment
    run(["optsched local down --wipe || true"], environment)


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_commands_print_what_is_shown(machine: Mapping[str, str], page: str, block: int) -> None:
    before = GOES_BEFORE.get((page, block), ())
    shown = examples(fences(ROOT / page, "console")[block])
    printed = run([*before, *(example.command for example in shown)], machine)
    for example, output in zip(shown, printed[len(before) :], strict=True):
        assert agrees(output, example.output), f"$ {example.command}\n{output}"


TRUST_S = 15.0
"""API servers follow a configuration of webhooks within seconds; docs/local.md says a few."""
TRY_S = 20
"""The seconds in which the test tries to create a job, longer than `TRUST_S`."""
PORT = "8443"
JOB = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: reviewed}
spec:
  schedulerName: volcano
  minAvailable: 1
  tasks: [{name: w, replicas: 1, template: {spec: {containers: [{name: c, image: none}]}}}]
"""


def test_the_webhook_of_the_page_is_trusted_within_seconds(
    machine: Mapping[str, str], tmp_path: Path
) -> None:
    """The test runs the block with `--webhook-url`, with services in the background.

    Then it creates a job repeatedly.
    """
    (block,) = [
        text for text in fences(ROOT / "docs" / "local.md", "sh") if "--webhook-url" in text
    ]
    lines = [line.partition("#")[0].strip() for line in block.splitlines()]
    services = [line for line in lines if line.startswith("optsched ")]
    assert [line.split()[1] for line in services] == ["scheduler", "controllers", "webhook"]
    job, port = tmp_path / "job.yaml", str(free_port())
    job.write_text(JOB)
    logs = [tmp_path / f"{number}.log" for number in range(len(services))]
    background = {
        line: f"{line.replace(PORT, port)} > {log} 2>&1 &"
        for line, log in zip(services, logs, strict=True)
    }
    serves = f"timeout 60 sh -c 'until grep -q \"reviews on\" {logs[-1]}; do sleep 0.2; done'"
    waits = "kubectl wait --for=jsonpath={.status.state.phase}=Running"
    tried = f"kubectl create --dry-run=server -f {job} -o 'jsonpath={{.spec.queue}}'"
    *before, applied = (background.get(line, line) for line in lines)
    printed = run(
        [
            *UP,
            *before,
            serves,
            applied,
            f"end=$(($(date +%s) + {TRY_S})); while [ $(date +%s) -lt $end ]; do "
            f"date +%s.%N; {tried} 2>&1 | tr '\\n' ' '; echo; done",
            f"kubectl create -f {job}",
            f"{waits} --timeout=60s vcjob/reviewed",
            "kubectl delete -f deploy/manifests/webhook.yaml",
            "kill %1 %2 %3; wait",
        ],
        machine,
    )
    trials = printed[len(UP) + len(before) + 2].splitlines()
    at, answers = [float(each) for each in trials[::2]], [each.strip() for each in trials[1::2]]
    distrusted = [when for when, answer in zip(at, answers, strict=True) if "x509" in answer]
    told = "\n".join(printed + [log.read_text() for log in logs])
    assert not distrusted or distrusted[-1] - at[0] <= TRUST_S, told
    # Only the webhook sets the queue of a job.
    assert set(answers[-20:]) == {"default"}, told
    assert "job.batch.volcano.sh/reviewed condition met" in printed[-3], told
