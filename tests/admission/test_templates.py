from __future__ import annotations

from random import Random
from typing import Any

import pytest

from optsched.admission.findings import Findings
from optsched.admission.pod_types import pod_types
from optsched.admission.templates import check_template
from tests.admission.kit import container, template
from tests.admission.pod_cases import GPU, REFUSED, TAKEN
from tests.admission.render_pod_types import PATH, render
from tests.support.randompods import RandomPods


def look(found: Any) -> Findings:
    findings = Findings()
    check_template(found, "t", findings)
    return findings


@pytest.mark.parametrize(("found", "sentences"), REFUSED)
def test_a_pod_that_no_server_would_take_is_refused_with_a_sentence(
    found: Any, sentences: list[str]
):
    assert list(look(found).response().problems) == sentences


@pytest.mark.parametrize("found", TAKEN)
def test_a_pod_that_a_server_takes_is_taken(found: Any):
    assert look(found).response().problems == ()


def test_a_field_that_pods_do_not_have_is_worth_a_warning():
    response = look(template(container(resource={}), nodeSelectors={}, zzz=1)).response()
    assert response.problems == ()
    assert response.warnings == (
        "t.spec.containers[0].resource: unknown field; did you mean resources?",
        "t.spec.nodeSelectors: unknown field; did you mean nodeSelector?",
        "t.spec.zzz: unknown field",
    )


def test_a_pod_as_users_write_it_passes():
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "d"}},
    ]
    full = container(
        resources={"requests": {"cpu": 1, "memory": "1Gi", GPU: "2"}, "limits": {GPU: 2, "cpu": 2}},
        ports=[{"containerPort": 22, "name": "ssh"}, {"containerPort": 80, "hostPort": 80}],
        env=[
            {"name": "A.b-c", "value": ""},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        volumeMounts=[{"name": name, "mountPath": f"/{name}"} for name in ("shm", "data")],
        livenessProbe={"httpGet": {"path": "/", "port": "http"}},
    )
    found = template(full, volumes=volumes, restartPolicy="OnFailure", hostname="h")
    found["metadata"] = {"creationTimestamp": None, "labels": {"a.b/c": "d"}}
    response = look(found).response()
    assert (response.problems, response.warnings) == ((), ())


def test_the_table_of_types_is_that_of_the_client():
    assert PATH.read_text("utf-8") == render(), "run python -m tests.admission.render_pod_types"
    assert {"PodTemplateSpec", "PersistentVolumeClaimSpec"} <= pod_types().keys()


def test_no_pod_breaks_the_review_of_its_template():
    pods = RandomPods(Random(1), pod_types())
    for _ in range(1500):
        spec = pods.spec()
        response = look({"spec": spec}).response()
        assert all(problem.startswith("t.spec") for problem in response.problems), spec
