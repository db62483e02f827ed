# ruff: noqa: E501  sentences are kept whole
from __future__ import annotations

from typing import Any

import pytest

from optsched.admission.findings import Findings
from optsched.admission.pod_types import pod_types
from optsched.admission.templates import check_template
from tests.admission.kit import container, template
from tests.admission.render_pod_types import PATH, render

GPU = "nvidia.com/gpu"
C = "t.spec.containers[0]"
V = "t.spec.volumes"
LABEL = "write at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
VALUE = (
    "write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, or "
    "nothing"
)


def look(found: Any) -> Findings:
    findings = Findings()
    check_template(found, "t", findings)
    return findings


def asks(requests: Any, limits: Any = None) -> Any:
    return template(container(resources={"requests": requests, "limits": limits}))


REFUSED = [
    ({"spec": {}}, ["t.spec.containers: Required value: write at least one container"]),
    ({}, ["t.spec.containers: Required value: write at least one container"]),
    (template({"image": "i"}), [f"{C}.name: Required value: give each container a name"]),
    (template(container(name="C")), [f'{C}.name: Invalid value: "C": {LABEL}']),
    (
        template(container(), initContainers=[container()]),
        [f'{C}.name: Duplicate value: "c": give each a name of its own'],
    ),
    (template({"name": "c"}), [f"{C}.image: Required value: write the image that is run"]),
    (
        template(container(imagePullPolicy="Maybe")),
        [
            f'{C}.imagePullPolicy: Unsupported value: "Maybe": supported values: "Always", '
            '"IfNotPresent", "Never"'
        ],
    ),
    (
        template(restartPolicy="Sometimes"),
        [
            't.spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", '
            '"OnFailure", "Never"'
        ],
    ),
    (
        asks({GPU: 1}),
        [
            f"{C}.resources.limits: Required value: Limit must be set for non overcommitable "
            "resources: write limits[nvidia.com/gpu] as in requests"
        ],
    ),
    (
        asks({"hugepages-2Mi": "2Mi"}),
        [
            f"{C}.resources.limits: Required value: Limit must be set for non overcommitable "
            "resources: write limits[hugepages-2Mi] as in requests"
        ],
    ),
    (
        asks({GPU: 1}, {GPU: 2}),
        [
            f"{C}.resources.requests[{GPU}]: Invalid value: 1: must be equal to nvidia.com/gpu limit "
            "of 2"
        ],
    ),
    (
        asks({"cpu": "2"}, {"cpu": "1500m"}),
        [
            f'{C}.resources.requests[cpu]: Invalid value: "2": must be less than or equal to cpu limit '
            "of 1500m"
        ],
    ),
    (
        asks({}, {GPU: "500m"}),
        [
            f'{C}.resources.limits[{GPU}]: Invalid value: "500m": must be an integer: nobody can have '
            "a part of nvidia.com/gpu"
        ],
    ),
    (
        asks({"memory": "-1Gi"}),
        [
            f'{C}.resources.requests[memory]: Invalid value: "-1Gi": must be greater than or equal to 0'
        ],
    ),
    (
        asks({"cpus": 1}),
        [
            f'{C}.resources.requests[cpus]: Invalid value: "cpus": no resource is called that: write '
            "cpu, memory, ephemeral-storage, hugepages-<size>, or a name of at most 63 letters, digits, "
            "'-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and "
            "'/', such as example.com/my-name"
        ],
    ),
    (
        asks({"cpu": "two"}),
        [
            f'{C}.resources.requests[cpu]: Invalid value: "two": is not a quantity: write a number '
            "with an optional suffix, such as 500m, 2, 1.5Gi or 1e3"
        ],
    ),
    (
        template(container(ports=[{"containerPort": 0}])),
        [f"{C}.ports[0].containerPort: Invalid value: 0: must be between 1 and 65535"],
    ),
    (
        template(container(ports=[{"name": "http"}])),
        [f"{C}.ports[0].containerPort: Required value: write 1 to 65535"],
    ),
    (
        template(container(ports=[{"containerPort": 1, "hostPort": 70000}])),
        [f"{C}.ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535"],
    ),
    (
        template(container(ports=[{"containerPort": 1, "protocol": "udp"}])),
        [
            f'{C}.ports[0].protocol: Unsupported value: "udp": supported values: "TCP", "UDP", "SCTP"'
        ],
    ),
    (
        template(container(ports=[{"containerPort": 1, "name": "tensorboard-port"}])),
        [
            f'{C}.ports[0].name: Invalid value: "tensorboard-port": write at most 15 lower-case '
            "letters, digits and single '-', at least one of them a letter"
        ],
    ),
    (
        template(container(ports=[{"containerPort": n, "name": "a"} for n in (1, 2)])),
        [f'{C}.ports[1].name: Duplicate value: "a": give each a name of its own'],
    ),
    (
        template(container(env=[{"value": "x"}])),
        [f"{C}.env[0].name: Required value: give each variable a name"],
    ),
    (
        template(container(env=[{"name": "a=b"}])),
        [f"{C}.env[0].name: Invalid value: \"a=b\": write printable ASCII characters without '='"],
    ),
    (
        template(
            container(
                env=[
                    {
                        "name": "A",
                        "value": "x",
                        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
                    }
                ]
            )
        ),
        [f'{C}.env[0].valueFrom: Invalid value: "": may not be specified when value is set'],
    ),
    (
        template(
            container(
                env=[
                    {
                        "name": "A",
                        "valueFrom": {"fieldRef": {"fieldPath": "f"}, "secretKeyRef": {"key": "k"}},
                    }
                ]
            )
        ),
        [f'{C}.env[0].valueFrom: Invalid value: "": keep one of the sources'],
    ),
    (
        template(container(env=[{"name": "A", "value": 5}])),
        [f"{C}.env[0].value: Invalid value: 5: is not a text: write it in quotes"],
    ),
    (
        template(container(volumeMounts=[{"name": "v", "mountPath": "/v"}])),
        [f'{C}.volumeMounts[0].name: Not found: "v": volumes of the pod are none'],
    ),
    (
        template(container(volumeMounts=[{"name": "v"}]), volumes=[{"name": "v"}]),
        [f"{C}.volumeMounts[0].mountPath: Required value: write where the volume is seen"],
    ),
    (
        template(
            container(volumeMounts=[{"name": "v", "mountPath": "/v"}] * 2), volumes=[{"name": "v"}]
        ),
        [f'{C}.volumeMounts[1].mountPath: Invalid value: "/v": must be unique: a volume is there'],
    ),
    (template(volumes=[{}]), [f"{V}[0].name: Required value: give each volume a name"]),
    (template(volumes=[{"name": "V"}]), [f'{V}[0].name: Invalid value: "V": {LABEL}']),
    (
        template(volumes=[{"name": "v"}, {"name": "v"}]),
        [f'{V}[1].name: Duplicate value: "v": give each a name of its own'],
    ),
    (
        template(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
        [
            f"{V}[0].hostPath: Forbidden: may not specify more than 1 volume type: keep emptyDir or "
            "hostPath"
        ],
    ),
    (
        {**template(), "metadata": {"labels": {"a b": "c"}}},
        [
            't.metadata.labels: Invalid value: "a b": write a name of at most 63 letters, digits, '
            "'-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and "
            "'/', such as example.com/my-name"
        ],
    ),
    (
        {**template(), "metadata": {"labels": {"a": "b c"}}},
        [f't.metadata.labels[a]: Invalid value: "b c": {VALUE}'],
    ),
    (
        {**template(), "metadata": {"labels": {"a": True}}},
        ["t.metadata.labels[a]: Invalid value: true: is not a text: write it in quotes"],
    ),
    (
        {**template(), "metadata": {"annotations": {"/a": ""}}},
        [
            't.metadata.annotations: Invalid value: "/a": write a name of at most 63 letters, digits, '
            "'-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and "
            "'/', such as example.com/my-name"
        ],
    ),
    (
        template(nodeSelector={"a": "b/c"}),
        [f't.spec.nodeSelector[a]: Invalid value: "b/c": {VALUE}'],
    ),
    (template(hostname="H"), [f't.spec.hostname: Invalid value: "H": {LABEL}']),
    (
        template(priorityClassName="P"),
        [
            't.spec.priorityClassName: Invalid value: "P": write at most 253 lower-case letters, '
            "digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        template(activeDeadlineSeconds=0),
        ["t.spec.activeDeadlineSeconds: Invalid value: 0: write 1 or more"],
    ),
    (
        template(terminationGracePeriodSeconds=-1),
        ["t.spec.terminationGracePeriodSeconds: Invalid value: -1: write 0 or more"],
    ),
    (
        template(hostNetwork="yes"),
        ['t.spec.hostNetwork: Invalid value: "yes": is not true or false'],
    ),
    (template(priority=1.5), ["t.spec.priority: Invalid value: 1.5: is not a whole number"]),
    (template(tolerations={}), ["t.spec.tolerations: Invalid value: {}: is not a list"]),
    (
        template(affinity=[]),
        ["t.spec.affinity: Invalid value: []: is not a mapping of field names to values"],
    ),
    (
        template(nodeSelector=[]),
        ["t.spec.nodeSelector: Invalid value: []: is not a mapping of names to values"],
    ),
]


@pytest.mark.parametrize(("found", "sentences"), REFUSED)
def test_a_pod_that_no_server_would_take_is_refused_with_a_sentence(
    found: Any, sentences: list[str]
):
    assert list(look(found).response().problems) == sentences


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
