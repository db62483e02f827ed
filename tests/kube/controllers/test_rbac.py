"""Tests that the controllers' role contains exactly the rights that the controllers use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from optsched.api.json_fields import owner_reference
from optsched.api.kinds import (
    COMMAND,
    CONFIG_MAP,
    CRON_JOB,
    JOB,
    JOB_FLOW,
    JOB_TEMPLATE,
    NETWORK_POLICY,
    NODE,
    POD_GROUP,
    REPLICA_SET,
    SECRET,
    SERVICE,
    Ref,
)
from optsched.cli.services.controllers import CONFIG, LOCK_NAME
from optsched.controllers.job.reconcile import Options as JobOptions
from optsched.controllers.registry import Options, all_controllers
from optsched.formats.files.yaml_text import Document, read_yaml
from tests.kube.controllers.test_manager import Process, play
from tests.support.pages import ROOT
from tests.support.vcjobs import KEYS, job, task

if TYPE_CHECKING:
    from tests.support.memory_server import MemoryServer

EVENTS: Final = {("", "events", verb) for verb in ("create", "get", "patch")}
LEASES: Final = {("coordination.k8s.io", "leases", verb) for verb in ("create", "get", "patch")}


def objects(name: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a manifest by kind."""
    found = read_yaml((ROOT / "deploy" / "manifests" / name).read_text("utf-8"))
    return {part.value["kind"]: part.value for part in found if isinstance(part, Document)}


RBAC: Final = objects("controllers-rbac.yaml")
DEPLOYMENT: Final = objects("controllers.yaml")["Deployment"]


SSH: Final = objects("controllers-ssh-rbac.yaml")
UFM: Final = objects("controllers-ufm-rbac.yaml")


def granted(
    role: str, where: dict[str, dict[str, Any]] | None = None
) -> list[tuple[str, str, str]]:
    return [
        (group, resource, verb)
        for rule in (where or RBAC)[role]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def adopt(server: MemoryServer, **more: Any) -> None:
    """Create a job and the objects that Volcano created for it."""
    manifest = job(task("a"), name="v", **more)
    meta = {"ownerReferences": [owner_reference(JOB, manifest)]}
    named = {SERVICE: "v", NETWORK_POLICY: "v", CONFIG_MAP: "v-svc", SECRET: "v-ssh"}
    for kind, name in named.items():
        server.world.put(kind, {"metadata": {"name": name, **meta}})
    server.world.put(JOB, manifest)


async def everything(*, has_ssh: bool = True) -> MemoryServer:
    """Return a server on which the controllers made each of their writes at least once."""
    server = play()
    options = Options(JobOptions((lambda: KEYS) if has_ssh else None))
    async with Process(server, *all_controllers(options)).running() as process:
        await process.until_idle()
        # A ReplicaSet that is scaled to zero loses its PodGroup.
        ref = Ref(REPLICA_SET, "default", "set-0")
        server.world.change(ref, lambda owner: owner["spec"].update(replicas=0))
        # A ReplicaSet with a changed annotation has its PodGroup updated.
        ref = Ref(REPLICA_SET, "default", "set-1")
        marks = {"scheduling.volcano.sh/group-min-member": "2"}
        server.world.change(ref, lambda owner: owner["metadata"].update(annotations=marks))
        await server.news()
        await process.until_idle()
        # The job uses every feature, grows, restarts, and is deleted after its TTL has expired.
        claim = {"mountPath": "/data", "volumeClaim": {"accessModes": ["ReadWriteOnce"]}}
        more = {"plugins": {"svc": [], "ssh": []}, "ttlSecondsAfterFinished": 0}
        server.world.put(JOB, job(task("a"), task("b", 0), volumes=[claim], **more))
        await server.news()
        await process.until_idle()
        group = Ref(POD_GROUP, "default", "j-j-uid")
        server.world.change(group, lambda obj: obj.update(status={"phase": "Inqueue"}))
        ref = Ref(JOB, "default", "j")
        server.world.change(ref, lambda obj: obj["spec"]["tasks"][1].update(replicas=1))
        await server.news()
        await process.until_idle()
        target = {"apiVersion": JOB.api_version, "kind": "Job", "name": "j", "uid": "j-uid"}
        server.world.put(
            COMMAND, {"metadata": {"name": "c"}, "action": "TerminateJob", "target": target}
        )
        adopt(server, **more)
        await server.news()
        await process.until_idle()
        # A CronJob creates a job.
        meta = {"name": "cron", "creationTimestamp": "2025-06-15T15:00:00Z"}
        template = {"spec": {"tasks": []}}
        spec = {"schedule": "* * * * *", "jobTemplate": template}
        server.world.put(CRON_JOB, {"metadata": meta, "spec": spec})
        # A JobFlow also creates a job.
        server.world.put(JOB_TEMPLATE, {"metadata": {"name": "a"}, "spec": {"tasks": []}})
        server.world.put(JOB_FLOW, {"metadata": {"name": "f"}, "spec": {"flows": [{"name": "a"}]}})
        await server.news()
        await process.until_idle()
        await discover(server, process)
    return server


async def discover(server: MemoryServer, process: Process) -> None:
    """Create HyperNodes from labels, change them and delete them."""
    text = (
        "networkTopologyDiscovery: [{source: label, enabled: true, config: "
        "{networkTopologyTypes: {t: [{nodeLabel: l}]}}}]"
    )
    meta = {"name": CONFIG[1], "namespace": CONFIG[0]}
    data = {"volcano-controller.conf": text}
    server.world.put(CONFIG_MAP, {"metadata": meta, "data": data})
    for name, label in (("a", "x"), ("b", "y"), ("b", "x")):
        server.world.put(NODE, {"metadata": {"name": name, "labels": {"l": label}}})
        await server.news()
        await process.until_idle()


@pytest.mark.asyncio
async def test_the_cluster_role_is_what_is_asked_for() -> None:
    server = await everything()
    found = [*granted("ClusterRole"), *granted("ClusterRole", SSH)]
    assert set(found) == server.asked | EVENTS
    assert len(found) == len(set(found))


@pytest.mark.asyncio
async def test_without_ssh_no_secret_is_asked_for() -> None:
    server = await everything(has_ssh=False)
    assert set(granted("ClusterRole")) == server.asked | EVENTS
    assert {resource for _, resource, _ in granted("ClusterRole", SSH)} == {"secrets"}
    assert not any(resource == "secrets" for _, resource, _ in granted("ClusterRole"))


def test_the_secret_of_ufm_is_one_of_the_namespace() -> None:
    (rule,) = UFM["Role"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["secrets"], ["get"])
    assert rule["resourceNames"] == ["ufm-credentials"]
    assert UFM["Role"]["metadata"]["namespace"] == "volcano-system"


def test_the_role_is_for_the_lease_alone() -> None:
    assert set(granted("Role")) == LEASES
    named = [rule for rule in RBAC["Role"]["rules"] if rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in named] == [[LOCK_NAME]]


@pytest.mark.parametrize(
    ("binding", "role"), [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")]
)
def test_roles_are_bound_to_the_account(binding: str, role: str) -> None:
    account = RBAC["ServiceAccount"]["metadata"]
    assert RBAC[binding]["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert RBAC[binding]["roleRef"]["kind"] == role
    assert RBAC[binding]["roleRef"]["name"] == RBAC[role]["metadata"]["name"]


def test_the_deployment_uses_the_account_and_a_command_there_is() -> None:
    spec = DEPLOYMENT["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == RBAC["ServiceAccount"]["metadata"]["name"]
    assert spec["containers"][0]["args"][0] == "controllers"
