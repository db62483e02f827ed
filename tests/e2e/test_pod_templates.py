"""A real API server validates pod templates for the webhook: one mistake per validation rule."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from optsched.api import kinds
from optsched.api.kinds import collection_path
from tests.admission.kit import NAMESPACE, container, job, task, template
from tests.support.api import Refused, until
from tests.support.webhooks import SYSTEM, make_namespace, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.local.plane import ControlPlane
    from tests.support.api import Api

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("pod-templates")]

GPU: Final = "nvidia.com/gpu"
PATH: Final = "spec.tasks[0].template"
HARD: Final = "requiredDuringSchedulingIgnoredDuringExecution"
JOBS: Final = f"{collection_path(kinds.JOB, NAMESPACE)}?dryRun=All"

MISTAKES: Final[dict[str, tuple[Any, str]]] = {
    "no containers": ({"spec": {}}, ".spec.containers: Required value"),
    "name": (template(container(name="C")), '.spec.containers[0].name: Invalid value: "C"'),
    "no image": (template({"name": "c"}), ".spec.containers[0].image: Required value"),
    "label": ({**template(), "metadata": {"labels": {"a b": "c"}}}, ".metadata.labels: Invalid"),
    "annotation": (
        {**template(), "metadata": {"annotations": {"a b": "c"}}},
        ".metadata.annotations: Invalid",
    ),
    "policy": (template(restartPolicy="Sometimes"), ".spec.restartPolicy: Unsupported value"),
    "second container": (
        template(container(), container()),
        '.spec.containers[1].name: Duplicate value: "c"',
    ),
    "init container": (
        template(initContainers=[container(name="i", ports=[{"containerPort": 99999}])]),
        ".spec.initContainers[0].ports[0].containerPort: Invalid value: 99999",
    ),
    "device": (
        template(container(resources={"requests": {GPU: 1}, "limits": {GPU: 2}})),
        ".spec.containers[0].resources.requests: Invalid value",
    ),
    "request above limit": (
        template(container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})),
        ".spec.containers[0].resources.requests: Invalid value",
    ),
    "quantity": (
        template(container(resources={"limits": {"cpu": "one"}})),
        '.spec.containers[0].resources.limits[cpu]: Invalid value: "one"',
    ),
    "size": (
        template(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1GiB"}}]),
        '.spec.volumes[0].emptyDir.sizeLimit: Invalid value: "1GiB"',
    ),
    "number for a variable": (
        template(container(env=[{"name": "A", "value": "x"}, {"name": "B", "value": 1}])),
        ".spec.containers[0].env[1].value: Invalid value: 1: must be of type string",
    ),
    "flag for a label": (
        template(nodeSelector={"a": "b", "c": True}),
        ".spec.nodeSelector[c]: Invalid value: true: must be of type string",
    ),
    "part of a port": (
        template(container(ports=[{"containerPort": 80}, {"containerPort": 1.5}])),
        ".spec.containers[0].ports[1].containerPort: Invalid value: 1.5: must be of type int32",
    ),
    "text for a list": (
        template(volumes="x"),
        '.spec.volumes: Invalid value: "x": must be of type []v1.Volume',
    ),
    "text for a pod": ({"spec": "x"}, '.spec: Invalid value: "x": must be of type v1.PodSpec'),
    "mount": (
        template(container(volumeMounts=[{"name": "v", "mountPath": "/v"}])),
        '.spec.containers[0].volumeMounts[0].name: Not found: "v"',
    ),
    "two sources": (
        template(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
        ".spec.volumes[0].hostPath: Forbidden",
    ),
    "probe": (
        template(container(livenessProbe={"periodSeconds": -1, "exec": {"command": ["a"]}})),
        ".spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1",
    ),
    "affinity": (
        template(affinity={"podAffinity": {HARD: [{"topologyKey": ""}]}}),
        f".spec.affinity.podAffinity.{HARD}[0].topologyKey: Required value",
    ),
    "spread": (
        template(topologySpreadConstraints=[{"maxSkew": 0, "topologyKey": "k"}]),
        ".spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0",
    ),
    "toleration": (
        template(tolerations=[{"key": "a b"}]),
        '.spec.tolerations[0].key: Invalid value: "a b"',
    ),
    "claim": (
        template(container(resources={"claims": [{"name": "g"}]})),
        '.spec.containers[0].resources.claims[0]: Not found: "g"',
    ),
}

VALID: Final[dict[str, Any]] = {
    "small": template(),
    "devices in requests alone": template(container(resources={"requests": {GPU: 1}})),
    "as users write it": {
        "metadata": {"creationTimestamp": None, "labels": {"a.b/c": "d"}},
        "spec": {
            "containers": [
                container(
                    resources={"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 2}},
                    ports=[{"containerPort": 22, "name": "ssh"}],
                    env=[{"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
                    livenessProbe={"httpGet": {"path": "/", "port": "http"}},
                )
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}],
            "restartPolicy": "OnFailure",
            "hostNetwork": True,
        },
    },
}


@pytest.fixture(scope="module")
def judge(
    control_plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    """Yield a client of an API server that calls the webhook."""
    make_namespace(api, NAMESPACE)
    with serving(api, control_plane.kubeconfig, tmp_path_factory.mktemp("templates")):
        yield api


def denial(api: Api, obj: Any, path: str = JOBS) -> str:
    """Return the reason for which an object is refused, or an empty text."""
    try:
        api.post(path, obj)
    except Refused as e:
        return str(e.args[2]) or str(e)
    return ""


@pytest.mark.parametrize(("pod", "problem"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_denied_with_its_field(judge: Api, pod: Any, problem: str):
    assert f"{PATH}{problem}" in denial(judge, job(task(template=pod)))


@pytest.mark.parametrize("pod", VALID.values(), ids=VALID)
def test_a_valid_template_is_accepted(judge: Api, pod: Any):
    assert denial(judge, job(task(template=pod))) == ""


def test_every_mistake_of_a_job_is_listed_together(judge: Api):
    tasks = [task(f"w{number}", template=pod) for number, (pod, _) in enumerate(MISTAKES.values())]
    said = denial(judge, job(*tasks, minAvailable=99))
    assert "job 'minAvailable' should not be greater than total replicas in tasks" in said
    for number, (_, problem) in enumerate(MISTAKES.values()):
        assert f"spec.tasks[{number}].template{problem}" in said


def test_templates_of_cronjobs_and_jobtemplates_are_validated(judge: Api):
    pod, problem = MISTAKES["mount"]
    spec = job(task(template=pod))["spec"]
    cron = {"schedule": "* * * * *", "jobTemplate": {"spec": spec}}
    for kind, inside, path in (
        (kinds.JOB_TEMPLATE, spec, PATH),
        (kinds.CRON_JOB, cron, f"spec.jobTemplate.{PATH}"),
    ):
        obj = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": "x", "namespace": NAMESPACE},
            "spec": inside,
        }
        said = denial(judge, obj, f"{collection_path(kind, NAMESPACE)}?dryRun=All")
        assert f"{path}{problem}" in said


def test_nothing_is_stored(judge: Api):
    assert denial(judge, job()) == ""
    assert judge.get("/api/v1/podtemplates")["items"] == []


def test_a_job_of_many_templates_is_validated_in_time(judge: Api):
    order = Random(1).sample(range(200), 200)
    tasks = [
        task(f"w{number}", template=template(container(image=f"i{number}"))) for number in order
    ]
    assert denial(judge, job(*tasks)) == ""


def test_without_a_verdict_no_job_is_accepted(judge: Api):
    """A quota makes the API server refuse dry runs; the webhook remembers accepted templates."""
    assert denial(judge, job()) == ""
    quotas = f"/api/v1/namespaces/{SYSTEM}/resourcequotas"
    none = {"metadata": {"name": "none"}, "spec": {"hard": {"count/podtemplates": "0"}}}
    judge.post(quotas, none)
    numbers = count()

    def refused() -> str:
        return denial(judge, job(task(template=template(container(image=f"new{next(numbers)}")))))

    try:
        said = until(refused, "a denial")
        assert "the API server did not say whether the request is allowed: 403 Forbidden" in said
        assert denial(judge, job()) == ""
    finally:
        judge.delete(f"{quotas}/none")
