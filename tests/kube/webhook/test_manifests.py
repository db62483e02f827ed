"""The webhook's manifests match the code and grant exactly the rights that it uses."""

from __future__ import annotations

import runpy
from typing import Any, Final

import pytest
import yaml

from optsched.admission.services import NAMESPACE, SERVICE_NAME, SERVICES, configuration_ref
from optsched.api import kinds
from optsched.kube.webhook.world import KINDS
from tests.support.pages import ROOT

FOLDER: Final = ROOT / "deploy" / "manifests"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


def objects(name: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a manifest by kind."""
    return {each["kind"]: each for each in documents(name)}


RBAC: Final = objects("webhook-rbac.yaml")
DEPLOYMENT: Final = objects("webhook-deployment.yaml")["Deployment"]
CONFIGURATIONS: Final = (
    kinds.MUTATING_WEBHOOK_CONFIGURATION,
    kinds.VALIDATING_WEBHOOK_CONFIGURATION,
)


def test_the_manifest_is_what_the_code_says() -> None:
    render = runpy.run_path(str(FOLDER / "render.py"))
    said = "run python deploy/manifests/render.py"
    assert (FOLDER / "webhook.yaml").read_text("utf-8") == render["render"](), said


def test_what_cannot_be_reviewed_is_refused_and_pods_of_the_system_are_not_held_up() -> None:
    found = [each for each in documents("webhook.yaml") if each["kind"] != "Service"]
    assert len(found) == len(SERVICES)
    for each in found:
        (hook,) = each["webhooks"]
        assert (hook["failurePolicy"], hook["sideEffects"]) == ("Fail", "None")
        assert hook["clientConfig"]["service"]["namespace"] == NAMESPACE
        if hook["rules"][0]["resources"] == ["pods"]:
            (expression,) = hook["namespaceSelector"]["matchExpressions"]
            assert expression["values"] == ["kube-system", NAMESPACE]


def granted(role: str) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, verb, name)
        for rule in RBAC[role]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def test_the_cluster_role_is_what_is_asked_for() -> None:
    followed = {(kind.group, kind.plural, verb, "") for kind in KINDS for verb in ("list", "watch")}
    looked_at_again = {(kinds.QUEUE.group, kinds.QUEUE.plural, "get", "")}
    reviews = kinds.SUBJECT_ACCESS_REVIEW
    answered = {
        (reviews.group, reviews.plural, "create", ""),
        (kinds.POD_GROUP.group, kinds.POD_GROUP.plural, "get", ""),
        (kinds.SCHEDULING_POD_GROUPS[0].group, kinds.POD_GROUP.plural, "get", ""),
        ("", "pods", "list", ""),
    }
    trusted = {
        (ref.kind.group, ref.kind.plural, verb, ref.name)
        for ref in map(configuration_ref, SERVICES)
        for verb in ("get", "patch")
    }
    assert granted("ClusterRole") == followed | looked_at_again | answered | trusted
    assert {ref.kind for ref in map(configuration_ref, SERVICES)} == set(CONFIGURATIONS)


def test_the_role_is_for_its_secrets_and_for_dry_runs_of_pod_templates() -> None:
    name = "volcano-admission-secret"
    assert granted("Role") == {
        ("", kinds.POD_TEMPLATE.plural, "create", ""),
        ("", "secrets", "create", ""),
        *(("", "secrets", verb, name) for verb in ("get", "patch")),
        *(("", "secrets", verb, f"{name}-authority") for verb in ("get", "patch")),
    }


@pytest.mark.parametrize(
    ("binding", "role"), [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")]
)
def test_roles_are_bound_to_the_account(binding: str, role: str) -> None:
    account = RBAC["ServiceAccount"]["metadata"]
    assert RBAC[binding]["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert RBAC[binding]["roleRef"]["kind"] == role
    assert RBAC[binding]["roleRef"]["name"] == RBAC[role]["metadata"]["name"]


def test_the_deployment_and_the_service_find_each_other() -> None:
    template = DEPLOYMENT["spec"]["template"]
    spec, service = template["spec"], objects("webhook.yaml")["Service"]
    assert spec["serviceAccountName"] == RBAC["ServiceAccount"]["metadata"]["name"]
    (container,) = spec["containers"]
    assert container["args"][0] == "webhook"
    assert service["metadata"] == {"name": SERVICE_NAME, "namespace": NAMESPACE}
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"--port={ports[service['spec']['ports'][0]['targetPort']]}" in container["args"]
