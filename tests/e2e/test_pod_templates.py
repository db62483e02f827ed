"""A real API server judges the same pods as the webhook does.

What the server takes as a pod, the webhook takes as the template of a job: that is a law. What the
server refuses, the webhook refuses too, but for what is listed here.
"""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from optsched.admission.findings import Findings
from optsched.admission.pod_types import pod_types
from optsched.admission.templates import check_template
from optsched.api import kinds
from optsched.api.kinds import collection_path
from tests.admission.kit import NAMESPACE, job, task
from tests.admission.pod_cases import REFUSED, TAKEN, asks
from tests.support.api import Refused
from tests.support.randompods import RandomPods
from tests.support.webhooks import make_namespace, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.local.plane import ControlPlane
    from tests.support.api import Api

pytestmark = pytest.mark.e2e

SPACE = NAMESPACE
FILLED_IN: Final = (asks({"nvidia.com/gpu": 1}),)
"""Refused as pods, taken as jobs: the limit of a device is filled in."""
NOT_OURS: Final = re.compile(
    # Other objects, which may come until the pod is made.
    "no PriorityClass with name|RuntimeClass"
    # Plugins of the server, which set it themselves.
    "|value of priority|value of PreemptionPolicy"
    # Flags and feature gates of the server.
    r"|disallowed by cluster policy|when `hostUsers` is false|Unsupported value: \"(Gt|Lt)\""
    # Pods for Windows.
    "|windowsOptions|hostProcess|windows"
)
"""What only a server can say, which is said when the pod is made."""
NUM_RANDOM: Final = 2500


@pytest.fixture(scope="module")
def judge(
    control_plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    """An API server that asks the webhook."""
    make_namespace(api, SPACE)
    with serving(api, control_plane.kubeconfig, tmp_path_factory.mktemp("templates")):
        yield api


def as_pod(api: Api, template: Any) -> str:
    """What the server has against a pod; empty where it takes it."""
    meta = {"generateName": "p-", **(template.get("metadata") or {})}
    return attempt(api, f"/api/v1/namespaces/{SPACE}/pods", {**template, "metadata": meta})


def as_job(api: Api, template: Any) -> str:
    """What the webhook, asked by the server, has against a job of such pods."""
    return attempt(api, collection_path(kinds.JOB, SPACE), job(task(template=template)))


def attempt(api: Api, path: str, obj: Any) -> str:
    try:
        api.post(f"{path}?dryRun=All", obj)
    except Refused as e:
        return str(e.args[2]) or str(e)
    return ""


@pytest.mark.parametrize(("template", "sentences"), REFUSED)
def test_what_is_refused_as_a_job_is_refused_as_a_pod(
    judge: Api, template: Any, sentences: list[str]
):
    assert as_pod(judge, template)
    said = as_job(judge, template)
    if template in FILLED_IN:
        assert said == ""
    else:
        assert sentences[0].removeprefix("t.") in said


@pytest.mark.parametrize("template", TAKEN)
def test_what_is_taken_as_a_pod_is_taken_as_a_job(judge: Api, template: Any):
    assert as_pod(judge, template) == ""
    assert as_job(judge, template) == ""


@pytest.mark.parametrize("seed", [1, 2])
def test_pods_that_nobody_would_write_are_judged_alike(judge: Api, seed: int):
    pods = RandomPods(Random(seed), types_of(judge))
    num_taken = 0
    for _ in range(NUM_RANDOM):
        template = {"spec": pods.spec()}
        theirs = as_pod(judge, template)
        findings = Findings()
        check_template(template, "template", findings)
        ours = findings.response().problems
        if not theirs:
            num_taken += 1
            assert ours == (), template
        elif not NOT_OURS.search(theirs):
            assert ours, f"{theirs}: {template}"
    # Most of a day's mistakes are met, and so are pods without any.
    assert NUM_RANDOM / 4 < num_taken < NUM_RANDOM * 3 / 4


def types_of(api: Api) -> dict[str, dict[str, str]]:
    """The fields that this server knows: our table may be of a newer release."""
    definitions = api.get("/openapi/v2")["definitions"]
    known: dict[str, dict[str, str]] = {}
    for kind, fields in pod_types().items():
        found: dict[str, Any] = {}
        for place in ("api.core.v1", "apimachinery.pkg.apis.meta.v1"):
            found |= definitions.get(f"io.k8s.{place}.{kind}", {}).get("properties", {})
        kept = {name: held for name, held in fields.items() if name in found}
        if kept:
            known[kind] = kept
    assert "priority" in known["PodSpec"]
    return known
