"""The Helm chart: its output for default and users' values, which an API server accepts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml

from optsched.admission.resource_groups import read_resource_groups
from optsched.api.crds import CUSTOM_KINDS
from optsched.cli.main import main
from optsched.local.assets import HELM, AssetsError, require
from optsched.local.processes import run
from optsched.policy.load import load_policy
from tests.support.api import until
from tests.support.shared import ROOT, shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.local.plane import ControlPlane

pytestmark = pytest.mark.e2e

CHART = ROOT / "deploy" / "helm" / "optsched"
SINGLE_FILE = ROOT / "deploy" / "volcano-development.yaml"
CRATER = "manifests/crater/values.yaml"
NAMES = {
    "scheduler": "volcano-scheduler",
    "controller": "volcano-controllers",
    "admission": "volcano-admission",
}

Raw = dict[str, Any]


class Helm:
    """A runner of helm that ignores the configuration of this machine's user."""

    def __init__(self, binary: Path, home: Path) -> None:
        self._binary = binary
        self._env = {"HOME": str(home), "PATH": os.environ["PATH"]}

    def __call__(self, *arguments: str | Path) -> tuple[str, str]:
        """Return stdout and stderr of a helm command; stdout is empty if the command failed."""
        result = run([self._binary, *arguments], env=self._env)
        return (result.stdout if result.returncode == 0 else ""), result.stderr

    def objects(self, *arguments: str | Path) -> list[Raw]:
        """Return the objects of the release `volcano`."""
        shown, error = self("template", "volcano", CHART, "-n", "volcano-system", *arguments)
        assert shown, error
        return [found for found in yaml.safe_load_all(shown) if found]


@pytest.fixture(scope="session")
def helm(report: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Return a runner of helm. Without helm the tests fail in CI and are skipped elsewhere."""
    try:
        assets = require(report, binaries=(HELM,))
    except AssetsError as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(e))
    return Helm(assets.paths["helm"], tmp_path_factory.mktemp("helm"))


def deployments(objects: list[Raw]) -> dict[str, Raw]:
    """Return the pod specs by name of their Deployment."""
    found = (obj for obj in objects if obj["kind"] == "Deployment")
    return {obj["metadata"]["name"]: obj["spec"]["template"]["spec"] for obj in found}


def the(objects: list[Raw], kind: str, name: str) -> Raw:
    found = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1
    return found[0]


def test_nothing_is_wrong_with_it(helm: Helm) -> None:
    shown, error = helm("lint", "--strict", CHART)
    assert "0 chart(s) failed" in shown, error


@pytest.mark.parametrize(
    "values",
    [
        "",
        "custom.controller_config_override=a: 1,custom.admission_config_override=b: 2",
        "custom.admission_feature_gates=SchedulingGatesQueueAdmission=true,"
        "custom.metrics_tls_secret=tls,custom.metrics_auth_enable=true",
    ],
)
def test_an_api_server_takes_all_of_it(
    helm: Helm, control_plane: ControlPlane, values: str
) -> None:
    """The test creates the objects, because a dry run accepts references to missing objects."""
    kubectl = control_plane.kubectl
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}})
    items = helm.objects("--set", values)
    manifest = {"apiVersion": "v1", "kind": "List", "items": items}
    try:
        applied = kubectl(
            "apply", "--server-side", "-f", "-", "-o", "name", input=json.dumps(manifest)
        ).split()
        assert {f"deployment.apps/{name}" for name in NAMES.values()} <= set(applied)
        assert len(applied) == len(manifest["items"])
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", input=json.dumps(manifest))


def test_the_single_file_is_the_chart(helm: Helm) -> None:
    with SINGLE_FILE.open() as file:
        namespace, *objects = [found for found in yaml.load_all(file, yaml.CSafeLoader) if found]
    assert namespace["kind"] == "Namespace"
    assert objects == helm.objects("--include-crds")


def test_it_brings_all_kinds(helm: Helm) -> None:
    objects = helm.objects("--include-crds")
    kinds = {o["spec"]["names"]["kind"] for o in objects if o["kind"].startswith("CustomResource")}
    assert kinds == {kind.kind for kind in CUSTOM_KINDS}


def test_components_are_named_as_users_expect(helm: Helm) -> None:
    assert set(deployments(helm.objects())) == set(NAMES.values())


def test_flags_are_those_of_the_commands(helm: Helm) -> None:
    for pod in deployments(helm.objects()).values():
        command, *flags = pod["containers"][0]["args"]
        parameters = main.get_command(click.Context(main), command).params
        known = {
            option
            for parameter in parameters
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        names = {flag.partition("=")[0] for flag in flags}
        assert names <= known


def test_nothing_runs_as_root_or_writes_where_it_should_not(helm: Helm) -> None:
    """Crater's values set security contexts to null, which has the same effect as omitting them."""
    for pod in deployments(helm.objects("-f", shared(CRATER))).values():
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]


def test_values_of_crater_install_crater_s_configuration(helm: Helm, tmp_path: Path) -> None:
    objects = helm.objects("-f", shared(CRATER))
    pods = deployments(objects)
    assert set(pods) == set(NAMES.values())
    conf = the(objects, "ConfigMap", "volcano-scheduler-configmap")["data"]
    path = tmp_path / "volcano-scheduler.conf"
    path.write_text(conf[path.name])
    policy = load_policy(str(path), Path.read_text)
    assert policy.actions == ("enqueue", "allocate", "backfill", "reclaim")
    for pod in pods.values():
        image = pod["containers"][0]["image"]
        assert image == "crater-harbor.act.buaa.edu.cn/docker.io/optsched:0.1.0"
        assert pod["nodeSelector"] == {"node-role.kubernetes.io/control-plane": ""}
        assert pod["tolerations"][0]["key"] == "node-role.kubernetes.io/control-plane"


def test_what_has_no_meaning_is_named(helm: Helm) -> None:
    """Volcano's images contain other programs, so the notes list the values without effect."""
    given = ("--dry-run=client", "-f", shared(CRATER), "--set", "custom.vap_enable=true")
    shown, error = helm("install", "volcano", CHART, "-n", "volcano-system", *given)
    notes = shown.partition("These values have no meaning here")[2]
    assert "custom.vap_enable" in notes, error
    assert "basic.scheduler_image_name" in notes
    assert "custom.enabled_admissions" not in notes


@pytest.mark.parametrize(
    "spelling", ["basic.scheduler.enabled=false", "custom.scheduler_enable=false"]
)
def test_components_are_left_out_by_either_spelling(helm: Helm, spelling: str) -> None:
    objects = helm.objects("--set", spelling)
    assert set(deployments(objects)) == set(NAMES.values()) - {"volcano-scheduler"}
    assert not any("volcano-scheduler" in obj["metadata"]["name"] for obj in objects)


def test_the_guide_s_spelling_installs_everything(helm: Helm) -> None:
    enabled = (f"basic.{name}.enabled=true" for name in ("scheduler", "controller", "admission"))
    assert set(deployments(helm.objects("--set", ",".join(enabled)))) == set(NAMES.values())


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ("custom.leader_elect_enable=true", {"scheduler": 2, "controller": 2, "admission": 2}),
        ("custom.leader_elect_enable=false", {"scheduler": 1, "controller": 1, "admission": 2}),
        ("custom.scheduler_replicas=3", {"scheduler": 3, "controller": 2, "admission": 2}),
    ],
)
def test_there_are_two_of_each_that_can_agree_on_a_leader(
    helm: Helm, values: str, numbers: dict[str, int]
) -> None:
    found = {
        obj["metadata"]["name"]: obj["spec"]["replicas"]
        for obj in helm.objects("--set", values)
        if obj["kind"] == "Deployment"
    }
    assert found == {NAMES[name]: number for name, number in numbers.items()}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            "basic.controller.enabled=true,custom.controller_enable=false",
            "basic.controller.enabled is true and custom.controller_enable is false: "
            "they mean the same, give one of them",
        ),
        (
            "custom.scheduler_replicas=2,custom.leader_elect_enable=false",
            "custom.scheduler_replicas is 2 and custom.leader_elect_enable is false",
        ),
        (
            "custom.metrics_auth_enable=true",
            "custom.metrics_auth_enable is true and custom.metrics_tls_secret is empty",
        ),
        (
            "basic.scheduler_config_file=config/mine.conf",
            "basic.scheduler_config_file: config/mine.conf is no file of this chart",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(helm: Helm, values: str, sentence: str) -> None:
    shown, error = helm("template", "volcano", CHART, "--set", values)
    assert not shown
    assert sentence in error


def test_images_registries_and_secrets_are_taken(helm: Helm) -> None:
    values = (
        "image.tag=7,basic.image_registry=hub.example.org/team,basic.image_pull_secret=key,"
        "basic.controller_image_name=mine,basic.image_tag_version=v2"
    )
    pods = deployments(helm.objects("--set", values))
    images = {name: pod["containers"][0]["image"] for name, pod in pods.items()}
    assert images["volcano-scheduler"] == "hub.example.org/team/optsched:7"
    assert images["volcano-controllers"] == "hub.example.org/team/mine:v2"
    assert pods["volcano-scheduler"]["imagePullSecrets"] == [{"name": "key"}]


def test_the_name_of_a_scheduler_is_that_of_its_lease(helm: Helm) -> None:
    objects = helm.objects("--set", "custom.scheduler_name=batch")
    args = deployments(objects)["volcano-scheduler"]["containers"][0]["args"]
    assert {"--scheduler-name=batch", "--lock-name=batch"} <= set(args)
    rules = the(objects, "Role", "volcano-scheduler")["rules"]
    assert ["batch"] in [rule.get("resourceNames") for rule in rules]


def webhooks(objects: list[Raw]) -> dict[str, Raw]:
    """Return the webhooks by the path that the API server calls."""
    found = (obj["webhooks"][0] for obj in objects if obj["kind"].endswith("WebhookConfiguration"))
    return {webhook["clientConfig"]["service"]["path"]: webhook for webhook in found}


def test_webhooks_are_asked_where_they_are_served(helm: Helm) -> None:
    """The API server calls the release's service with its path, except for the webhook's pods."""
    given = ("template", "batch", CHART, "-n", "jobs", "-f", shared(CRATER))
    shown, error = helm(*given)
    assert shown, error
    objects = [found for found in yaml.safe_load_all(shown) if found]
    pod = deployments(objects)["batch-admission"]
    enabled = next(a for a in pod["containers"][0]["args"] if a.startswith("--enabled-admission="))
    asked = webhooks(objects)
    assert set(asked) == set(enabled.partition("=")[2].split(","))
    the(objects, "Service", "batch-admission-service")
    for webhook in asked.values():
        service = webhook["clientConfig"]["service"]
        assert (service["name"], service["namespace"]) == ("batch-admission-service", "jobs")
        if webhook["rules"][0]["scope"] != "Cluster":
            (own,) = webhook["namespaceSelector"]["matchExpressions"]
            assert own["values"] == ["kube-system", "jobs"]
    # Accounts of another namespace, which may be a tenant's, are reviewed like all others.
    assert "system:serviceaccount:jobs:batch-controllers" in shown
    assert "system:serviceaccount:volcano-system:" not in shown
    rules = [rule for rule in the(objects, "ClusterRole", "batch-admission")["rules"]]
    named = {name for rule in rules for name in rule.get("resourceNames", ())}
    assert "batch-admission-service-jobs-validate" in named


def test_controllers_read_the_configmap_of_their_release(helm: Helm, tmp_path: Path) -> None:
    text = "networkTopologyDiscovery:\n- {source: label, enabled: false}\n"
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"custom": {"controller_config_override": text}}))
    shown, error = helm("template", "batch", CHART, "-n", "jobs", "-f", values)
    assert shown, error
    objects = [found for found in yaml.safe_load_all(shown) if found]
    conf = the(objects, "ConfigMap", "batch-controller-configmap")
    assert conf["metadata"]["namespace"] == "jobs"
    assert conf["data"] == {"volcano-controller.conf": text}
    args = deployments(objects)["batch-controllers"]["containers"][0]["args"]
    assert "--config-map=jobs/batch-controller-configmap" in args
    names = {obj["metadata"]["name"] for obj in helm.objects() if obj["kind"] == "ConfigMap"}
    assert names == {"volcano-scheduler-configmap"}


def test_resource_groups_are_mounted_and_every_pod_is_looked_at(helm: Helm, tmp_path: Path) -> None:
    text = "resourceGroups: [{resourceGroup: gpu, schedulerName: volcano}]\n"
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"custom": {"admission_config_override": text}}))
    objects = helm.objects("-f", values)
    conf = the(objects, "ConfigMap", "volcano-admission-configmap")["data"]
    assert read_resource_groups(conf["volcano-admission.conf"])[0].name == "gpu"
    pod = deployments(objects)["volcano-admission"]
    (container,) = pod["containers"]
    flag = "--admission-conf=/admission.local.config/configmap/volcano-admission.conf"
    assert flag in container["args"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume.get("configMap") for volume in pod["volumes"]}
    assert mounts["admission-config"] == "/admission.local.config/configmap"
    key = "volcano-admission.conf"
    assert volumes["admission-config"] == {
        "name": "volcano-admission-configmap",
        "items": [{"key": key, "path": key}],
    }
    asked = webhooks(objects)["/pods/mutate"]
    assert "matchConditions" not in asked
    (own,) = asked["namespaceSelector"]["matchExpressions"]
    assert own["values"] == ["kube-system", "volcano-system"]


def test_only_pods_of_ours_that_controllers_have_not_made_are_filled_in(helm: Helm) -> None:
    gates = "SchedulingGatesQueueAdmission=true"
    objects = helm.objects("--set", f"custom.admission_feature_gates={gates}")
    args = deployments(objects)["volcano-admission"]["containers"][0]["args"]
    assert f"--feature-gates={gates}" in args
    (condition,) = webhooks(objects)["/pods/mutate"]["matchConditions"]
    assert "queue-allocation-gate" in condition["expression"]
    named = "'system:serviceaccount:volcano-system:volcano-controllers'"
    assert condition["expression"].count(named) == 2
    assert webhooks(helm.objects())["/pods/mutate"]["matchConditions"] == [condition]


def test_tenants_have_roles_and_the_right_to_use_queues_is_a_choice(helm: Helm) -> None:
    objects = helm.objects()
    edit = the(objects, "ClusterRole", "volcano-tenant-edit")
    view = the(objects, "ClusterRole", "volcano-tenant-view")
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    for role in (edit, view):
        resources = {name for rule in role["rules"] for name in rule["resources"]}
        assert "commands" in resources
        assert not resources & {"queues", "jobs/status", "hypernodes", "nodeshards"}
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    flag = "--queue-rbac"
    assert flag not in deployments(objects)["volcano-admission"]["containers"][0]["args"]
    chosen = helm.objects("--set", "custom.queue_rbac_enable=true")
    assert flag in deployments(chosen)["volcano-admission"]["containers"][0]["args"]
    (rule,) = the(chosen, "ClusterRole", "volcano-default-queue-user")["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == (["default"], ["use"])


def test_webhook_and_scheduler_agree_on_what_tenants_may_claim(helm: Helm) -> None:
    lists = "custom.tenant_priority_classes={a,b},custom.device_schedulers={hami}"
    chosen = deployments(helm.objects("--set", lists))
    wanted = ["--tenant-priority-class=a", "--tenant-priority-class=b", "--device-scheduler=hami"]
    for name in ("volcano-admission", "volcano-scheduler"):
        args = chosen[name]["containers"][0]["args"]
        assert [arg for arg in args if "priority-class" in arg or "device" in arg] == wanted


def test_requests_of_components_do_not_queue_with_those_of_tenants(helm: Helm) -> None:
    objects = helm.objects("--set", "custom.admission_enable=false")
    for name, level in (
        ("volcano-requests", "workload-high"),
        ("volcano-leases", "leader-election"),
    ):
        spec = the(objects, "FlowSchema", name)["spec"]
        assert spec["priorityLevelConfiguration"]["name"] == level
        assert spec["distinguisherMethod"] == {"type": "ByUser"}
        (rule,) = spec["rules"]
        accounts = {subject["serviceAccount"]["name"] for subject in rule["subjects"]}
        assert accounts == {NAMES["scheduler"], NAMES["controller"]}
        spaces = {subject["serviceAccount"]["namespace"] for subject in rule["subjects"]}
        assert spaces == {"volcano-system"}
    off = helm.objects("--set", "custom.api_priority_enable=false")
    assert not any(obj["kind"] == "FlowSchema" for obj in off)


def test_the_api_server_knows_the_levels_of_our_requests(
    helm: Helm, control_plane: ControlPlane
) -> None:
    kubectl = control_plane.kubectl
    made = [obj for obj in helm.objects() if obj["kind"] == "FlowSchema"]
    names = [obj["metadata"]["name"] for obj in made]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})

    def are_known() -> bool:
        items = json.loads(kubectl("get", "flowschemas", *names, "-o", "json"))["items"]
        return [
            condition["status"]
            for obj in items
            for condition in obj.get("status", {}).get("conditions", ())
            if condition["type"] == "Dangling"
        ] == ["False", "False"]

    try:
        kubectl("apply", "--server-side", "-f", "-", input=manifest)
        until(are_known, "the levels of both FlowSchemas are known")
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", input=manifest)


def grants(objects: list[Raw]) -> set[tuple[str, str, str]]:
    """Return the role kind, resource and verb of every grant in the chart."""
    return {
        (obj["kind"], resource, verb)
        for obj in objects
        if obj["kind"] in ("Role", "ClusterRole")
        for rule in obj["rules"]
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


def test_rights_come_with_the_features_that_need_them(helm: Helm) -> None:
    off = helm.objects("--set", "custom.job_ssh_enable=false")
    least = grants(off)
    assert not {each for each in least if each[:2] == ("ClusterRole", "secrets")}
    assert ("ClusterRole", "nodes", "patch") not in least
    for name in ("volcano-controllers", "volcano-admission"):
        assert "--no-ssh" in deployments(off)[name]["containers"][0]["args"]
    scheduler = the(off, "ClusterRole", "volcano-scheduler")["rules"]
    pods = [set(rule["verbs"]) for rule in scheduler if "pods" in rule["resources"]]
    assert pods
    assert not set.union(*pods) & {"patch", "delete"}
    ssh = helm.objects()
    assert ("ClusterRole", "secrets", "create") in grants(ssh)
    assert "--no-ssh" not in str(deployments(ssh))
    gates = "custom.admission_feature_gates=SchedulingGatesQueueAdmission=true"
    more = helm.objects(
        *("--set", gates, "--set", "custom.scheduler_node_lock_enable=true"),
        *("--set", "custom.scheduler_budget_override_enable=true"),
        *("--set", "custom.controller_ufm_secret=fabric"),
    )
    flag = "--guarantees-override-budgets"
    assert flag not in deployments(ssh)["volcano-scheduler"]["containers"][0]["args"]
    assert flag in deployments(more)["volcano-scheduler"]["containers"][0]["args"]
    for name, kind, resource in (
        ("volcano-scheduler-gates", "ClusterRole", "pods"),
        ("volcano-scheduler-node-lock", "ClusterRole", "nodes"),
        ("volcano-scheduler-budget-override", "ClusterRole", "pods"),
        ("volcano-controllers-ufm", "Role", "secrets"),
    ):
        (rule,) = the(more, kind, name)["rules"]
        assert rule["resources"] == [resource]
        bound = the(more, f"{kind}Binding", name)
        assert bound["roleRef"]["name"] == name
        assert bound["subjects"][0]["name"] in NAMES.values()
        assert name not in {obj["metadata"]["name"] for obj in ssh}
    (rule,) = the(more, "Role", "volcano-controllers-ufm")["rules"]
    assert rule["resourceNames"] == ["fabric"]


def test_components_are_guarded_and_mount_the_keys_that_they_read(helm: Helm) -> None:
    objects = helm.objects("--set", "custom.admission_config_override=resourceGroups: []")
    for name in NAMES.values():
        budget = the(objects, "PodDisruptionBudget", name)
        assert budget["spec"]["maxUnavailable"] == 1
        policy = the(objects, "NetworkPolicy", name)
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert policy["spec"]["podSelector"]["matchLabels"] == {"app": name}
    deployment = the(objects, "Deployment", "volcano-admission")
    assert deployment["spec"]["replicas"] == 2
    for pod in deployments(objects).values():
        for volume in pod["volumes"]:
            if "configMap" in volume:
                assert [item["key"] for item in volume["configMap"]["items"]]
    choice = "custom.metrics_from[0].namespaceSelector.matchLabels.name=monitoring"
    rules = the(helm.objects("--set", choice), "NetworkPolicy", "volcano-scheduler")["spec"]
    (ingress,) = rules["ingress"]
    assert ingress["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    off = helm.objects(
        *("--set", "custom.network_policy_enable=false", "--set", "custom.admission_replicas=1")
    )
    found = {(obj["kind"], obj["metadata"]["name"]) for obj in off}
    assert ("PodDisruptionBudget", "volcano-admission") not in found
    assert not any(kind == "NetworkPolicy" for kind, _ in found)


def test_metrics_are_served_over_tls_to_those_with_the_right(helm: Helm) -> None:
    off = helm.objects()
    assert "metrics-tls" not in str(off)
    assert not [each for each in grants(off) if each[1] == "tokenreviews"]
    over_tls = helm.objects("--set", "custom.metrics_tls_secret=m")
    assert "--metrics-auth" not in str(over_tls)
    assert grants(over_tls) == grants(off)
    both = ("--set", "custom.metrics_tls_secret=m,custom.metrics_auth_enable=true")
    objects = helm.objects(*both)
    for name, pod in deployments(objects).items():
        (container,) = pod["containers"]
        assert "--metrics-auth" in container["args"]
        (secret,) = [volume for volume in pod["volumes"] if volume["name"] == "metrics-tls"]
        assert secret["secret"]["secretName"] == "m"
        keys = [item["path"] for item in secret["secret"]["items"]]
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "metrics-tls"]
        for flag, key in zip(("cert", "private-key"), keys, strict=True):
            assert f"--metrics-tls-{flag}-file={mount['mountPath']}/{key}" in container["args"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert f"--metrics-address=:{ports['metrics']}" in container["args"]
        assert container["livenessProbe"]["httpGet"]["port"] == "http"
        annotations = the(objects, "Deployment", name)["spec"]["template"]["metadata"][
            "annotations"
        ]
        assert annotations["prometheus.io/port"] == str(ports["metrics"])
        assert annotations["prometheus.io/scheme"] == "https"
        ingress = the(objects, "NetworkPolicy", name)["spec"]["ingress"]
        assert ingress[-1]["ports"] == [{"port": ports["metrics"], "protocol": "TCP"}]
        rules = the(objects, "ClusterRole", f"{name}-metrics")["rules"]
        resources = [resource for rule in rules for resource in rule["resources"]]
        assert resources == ["tokenreviews", "subjectaccessreviews"]
        (subject,) = the(objects, "ClusterRoleBinding", f"{name}-metrics")["subjects"]
        assert subject["name"] == name
    for name in ("scheduler", "controllers"):
        (port,) = the(objects, "Service", f"volcano-{name}-service")["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (8444, "metrics")
    (rule,) = the(objects, "ClusterRole", "volcano-metrics-reader")["rules"]
    assert rule == {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}


def test_namespaces_can_be_chosen(helm: Helm) -> None:
    choice = "custom.webhooks_namespace_selector_expressions[0]"
    values = f"{choice}.key=kind,{choice}.operator=In,{choice}.values[0]=batch"
    webhook = webhooks(helm.objects("--set", values))["/jobs/validate"]
    assert webhook["namespaceSelector"]["matchExpressions"][1] == {
        "key": "kind",
        "operator": "In",
        "values": ["batch"],
    }
