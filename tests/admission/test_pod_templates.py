"""Tests of the responses to the API server's verdict on a pod template.

tests/e2e/test_pod_templates.py uses a real API server.
"""

from __future__ import annotations

from typing import Any

import pytest

from optsched.admission.findings import Review
from optsched.admission.pod_templates import check_template
from optsched.admission.review import Action, Request, Resource, Response, TemplateVerdict
from optsched.admission.services import SERVICES
from optsched.admission.world import Settings
from optsched.api.kinds import POD_TEMPLATE
from tests.admission.kit import StaticWorld, ask, container, job, task, template

PATH = "spec.tasks[0].template"
CANNOT = 'PodTemplate in version "v1" cannot be handled as a PodTemplate: '


def judged(verdict: TemplateVerdict, found: Any) -> Response:
    """Return the response to a job whose only template gets the given verdict."""

    return ask("/jobs/validate", job(task(template=found)), verdict=verdict)


def failing(message: str, found: Any) -> tuple[str, ...]:
    return judged(TemplateVerdict((("", CANNOT + message),)), found).problems


def test_a_template_that_the_api_server_refuses_is_denied_by_field():
    errors = (
        ("template.spec.containers[0].name", 'Invalid value: "C": a lowercase RFC 1123 label …'),
        ("template.labels", 'Invalid value: "a b": name part must consist of …'),
        ("template.annotations", "Too long: may not be more than 262144 bytes"),
    )
    assert judged(TemplateVerdict(errors), template()).problems == (
        f'{PATH}.spec.containers[0].name: Invalid value: "C": a lowercase RFC 1123 label …',
        f'{PATH}.metadata.labels: Invalid value: "a b": name part must consist of …',
        f"{PATH}.metadata.annotations: Too long: may not be more than 262144 bytes",
    )


def test_warnings_of_the_api_server_name_fields_of_the_job():
    warnings = (
        'unknown field "template.spec.zzz"',
        'template.spec.containers[0].env[1]: hides previous definition of "template.x"',
    )
    response = judged(TemplateVerdict(warnings=warnings), template())
    assert response.allowed
    assert response.warnings == (
        f'unknown field "{PATH}.spec.zzz"',
        f'{PATH}.spec.containers[0].env[1]: hides previous definition of "{PATH}.x"',
    )


def test_a_field_of_the_wrong_type_is_named_with_its_index():
    env = [{"name": "A", "value": "x"}, {"name": "B", "value": 1}]
    go = "json: cannot unmarshal {} into Go struct field {} of type {}"
    for message, found, problem in (
        (
            go.format("number", "EnvVar.template.spec.containers.env.value", "string"),
            template(container(), container(env=env)),
            f"{PATH}.spec.containers[1].env[1].value: Invalid value: 1: must be of type string",
        ),
        (
            go.format("bool", "PodSpec.template.spec.nodeSelector", "string"),
            template(nodeSelector={"a": "b", "gpu": True}),
            f"{PATH}.spec.nodeSelector[gpu]: Invalid value: true: must be of type string",
        ),
        (
            go.format("number", "Container.template.spec.containers.args", "string"),
            template(container(args=["a", 3])),
            f"{PATH}.spec.containers[0].args[1]: Invalid value: 3: must be of type string",
        ),
        (
            go.format("string", "PodSpec.template.spec.volumes", "[]v1.Volume"),
            template(volumes="x"),
            f'{PATH}.spec.volumes: Invalid value: "x": must be of type []v1.Volume',
        ),
        (
            go.format("number 1.5", "ContainerPort.template.spec.containers.ports", "int32"),
            template(container(ports=[1, 1.5])),
            f"{PATH}.spec.containers[0].ports[1]: Invalid value: 1.5: must be of type int32",
        ),
    ):
        assert failing(message, found) == (problem,)


def test_a_quantity_that_can_not_be_read_is_named():
    found = template(
        container(resources={"requests": {"cpu": "1"}, "limits": {"cpu": "one"}}),
        volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1GiB"}}],
    )
    quantity, size = failing("quantities must match the regular expression '^…$'", found)
    assert quantity.startswith(
        f'{PATH}.spec.containers[0].resources.limits[cpu]: Invalid value: "one"'
    )
    assert size.startswith(f'{PATH}.spec.volumes[0].emptyDir.sizeLimit: Invalid value: "1GiB"')


@pytest.mark.parametrize(
    "message",
    [
        'parsing time "x" as "2006"',
        "quantities must match the regular expression",
        "json: cannot unmarshal string into Go struct field PodSpec.template.spec.x of type bool",
    ],
)
def test_what_can_not_be_located_is_said_of_the_template(message: str):
    assert failing(message, template()) == (f"{PATH}: {message}",)


def test_equal_templates_are_one_question():
    request = Request("u", Action.CREATE, Resource("batch.volcano.sh", "v1alpha1", "jobs"))
    review, other = Review(request, StaticWorld(), Settings()), template(container(name="d"))
    for index, found in enumerate(
        ({"metadata": {}, **template()}, {**template(), "metadata": {}}, other)
    ):
        check_template(found, f"spec.tasks[{index}].template", review)
    response = review.response()
    assert [question.template for question in response.questions] == [
        {"metadata": {}, **template()},
        other,
    ]
    assert not response.allowed


def test_the_webhook_does_not_review_what_it_asks_about():
    assert POD_TEMPLATE not in {service.kind for service in SERVICES}
