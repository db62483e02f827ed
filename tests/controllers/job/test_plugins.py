"""Tests of the exact fields that each plugin adds to pods."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.job import parse_job
from optsched.api.json_fields import owner_reference
from optsched.api.kinds import CONFIG_MAP, JOB, NETWORK_POLICY, SECRET, SERVICE, Ref
from optsched.controllers.effects import Again, Emit, Patch
from optsched.controllers.job.builtin_plugins import PLUGINS, plugin_problems
from optsched.controllers.job.object_names import host, hosts
from optsched.controllers.job.owned_objects import pod_maker
from optsched.controllers.job.plugin_interface import read_flags
from optsched.controllers.job.reconcile import SCOPES
from tests.support.vcjobs import Play, container, job, task

if TYPE_CHECKING:
    from optsched.controllers.effects import Effect

SELECTOR = {"volcano.sh/job-name": "j", "volcano.sh/job-namespace": "default"}


def pod_of(manifest: dict[str, Any], name: str, index: int = 0) -> dict[str, Any]:
    found, errors = parse_job(manifest)
    assert found is not None
    assert not errors
    [one] = [each for each in found.spec.tasks if each.name == name]
    return pod_maker(found, manifest).pod(one, index)


def env(pod: dict[str, Any], which: str = "containers") -> dict[str, str]:
    """Return the variables of the first container, with references as `name/key`."""
    found = {}
    for each in pod["spec"][which][0].get("env", ()):
        source = each.get("valueFrom", {}).get("configMapKeyRef", {})
        found[each["name"]] = each.get("value") or f"{source['name']}/{source['key']}"
    return found


def with_start(one: dict[str, Any]) -> dict[str, Any]:
    """Return the same task with an init container."""
    spec = one["template"]["spec"]
    spec["initContainers"] = [{"name": "start", "image": "busybox"}]
    return one


def data_of(play: Play, kind: Any, name: str) -> dict[str, Any]:
    found = play.world.get(kind, "default", name)
    assert found is not None
    return dict(found)


# --- env -----------------------------------------------------------------------------------------


def test_env() -> None:
    pod = pod_of(job(with_start(task("a", 4)), plugins={"env": []}), "a", 2)
    expected = {
        "VK_TASK_INDEX": "2",
        "VC_TASK_INDEX": "2",
        "VK_TASK_NUM": "4",
        "VC_TASK_NUM": "4",
    }
    assert env(pod) == expected
    assert env(pod, "initContainers") == expected


def test_variables_come_behind_those_of_the_user() -> None:
    own = task("a")
    own["template"]["spec"]["containers"] = [container(env=[{"name": "MINE", "value": "1"}])]
    assert next(iter(env(pod_of(job(own, plugins={"env": []}), "a")))) == "MINE"


# --- svc -----------------------------------------------------------------------------------------


def test_svc_dresses_pods() -> None:
    manifest = job(with_start(task("my-ps")), task("worker", 2), plugins={"svc": []})
    pod = pod_of(manifest, "my-ps")
    assert pod["spec"]["hostname"] == "j-my-ps-0"
    assert pod["spec"]["subdomain"] == "j"
    expected = {
        "VC_MY_PS_HOSTS": "j-svc/VC_MY_PS_HOSTS",
        "VC_MY_PS_NUM": "j-svc/VC_MY_PS_NUM",
        "VC_WORKER_HOSTS": "j-svc/VC_WORKER_HOSTS",
        "VC_WORKER_NUM": "j-svc/VC_WORKER_NUM",
        "VC_MY_PS_HOST": "j-my-ps-0.j",
        "VC_WORKER_HOST": "j-worker-0.j",
    }
    assert env(pod) == expected
    assert env(pod, "initContainers") == expected
    assert pod["spec"]["volumes"] == [{"name": "j-svc", "configMap": {"name": "j-svc"}}]
    mount = {"name": "j-svc", "mountPath": "/etc/volcano"}
    assert pod["spec"]["containers"][0]["volumeMounts"] == [mount]
    assert pod["spec"]["initContainers"][0]["volumeMounts"] == [mount]


@pytest.mark.parametrize(
    "spec", [{}, {"hostname": "h"}, {"subdomain": "s"}, {"hostname": "h", "subdomain": "s"}]
)
@pytest.mark.parametrize("replicas", [0, 1, 12])
def test_hosts_of_a_task_are_those_of_its_pods(spec: dict[str, Any], replicas: int) -> None:
    made = task("my-ps", replicas)
    made["template"]["spec"].update(spec)
    found, _ = parse_job(job(made))
    assert found is not None
    (one,) = found.spec.tasks
    each = dict.fromkeys(host("j", one, index) for index in range(replicas))
    assert hosts("j", one) == list(each)


def test_svc_makes_objects() -> None:
    play = Play(job(task("my-ps"), task("worker", 2), plugins={"svc": []}))
    assert data_of(play, CONFIG_MAP, "j-svc")["data"] == {
        "my_ps.host": "j-my-ps-0.j",
        "VC_MY_PS_HOSTS": "j-my-ps-0.j",
        "VC_MY_PS_NUM": "1",
        "worker.host": "j-worker-0.j\nj-worker-1.j",
        "VC_WORKER_HOSTS": "j-worker-0.j,j-worker-1.j",
        "VC_WORKER_NUM": "2",
    }
    service = data_of(play, SERVICE, "j")
    assert service["spec"] == {
        "clusterIP": "None",
        "selector": SELECTOR,
        "publishNotReadyAddresses": False,
    }
    assert data_of(play, NETWORK_POLICY, "j")["spec"] == {
        "podSelector": {"matchLabels": SELECTOR},
        "ingress": [{"from": [{"podSelector": {"matchLabels": SELECTOR}}]}],
        "policyTypes": ["Ingress"],
    }
    assert service["metadata"]["ownerReferences"][0]["uid"] == "j-uid"
    assert play.status["controlledResources"] == {"plugin-svc": "svc"}


def test_svc_with_arguments() -> None:
    arguments = [
        "--publish-not-ready-addresses=true",
        "--disable-network-policy",
        "--inject-hosts-env=false",
    ]
    play = Play(job(task("a"), plugins={"svc": arguments}))
    assert data_of(play, SERVICE, "j")["spec"]["publishNotReadyAddresses"] is True
    assert play.world.listed(NETWORK_POLICY) == []
    assert env(play.pod("a-0")) == {}


def test_names_that_a_template_gives_are_kept() -> None:
    own = task("a", 3)
    own["template"]["spec"] |= {"hostname": "head", "subdomain": "elsewhere"}
    play = Play(job(own, plugins={"svc": []}))
    assert play.pod("a-1")["spec"]["hostname"] == "head"
    data = data_of(play, CONFIG_MAP, "j-svc")["data"]
    assert data["VC_A_HOSTS"] == "head.elsewhere"
    assert data["VC_A_NUM"] == "1"


def test_the_list_of_hosts_follows_the_job() -> None:
    play = Play(job(task("a"), task("b"), plugins={"svc": [], "ssh": []}, minAvailable=1))
    before = data_of(play, SECRET, "j-ssh")["data"]
    play.edit(tasks=[task("a", 2), task("b", 0)])
    assert data_of(play, CONFIG_MAP, "j-svc")["data"] == {
        "a.host": "j-a-0.j\nj-a-1.j",
        "VC_A_HOSTS": "j-a-0.j,j-a-1.j",
        "VC_A_NUM": "2",
        "b.host": "",
        "VC_B_HOSTS": "",
        "VC_B_NUM": "0",
    }
    after = data_of(play, SECRET, "j-ssh")["data"]
    assert "Host j-a-1\n" in b64decode(after["config"]).decode()
    assert {key: after[key] for key in after if key != "config"} == {
        key: before[key] for key in before if key != "config"
    }


def test_a_service_of_somebody_else_is_left_alone() -> None:
    play = Play(job(task("a")))
    play.world.put(SERVICE, {"metadata": {"name": "k"}, "spec": {"clusterIP": "10.0.0.1"}})
    other = Play(job(task("a"), name="k", plugins={"svc": []}))
    other.world.put(SERVICE, {"metadata": {"name": "k"}, "spec": {"clusterIP": "10.0.0.1"}})
    other.settle()
    assert data_of(other, SERVICE, "k")["spec"] == {"clusterIP": "10.0.0.1"}
    assert "NameTaken" in other.reasons()


def test_all_that_plugins_make_has_the_label_by_which_it_is_followed() -> None:
    tasks = [task(name) for name in ("master", "worker", "head", "ps", "chief")]
    play = Play(job(*tasks, plugins={name: [] for name in PLUGINS}))
    made = [obj for kind in SCOPES for obj in play.world.listed(kind)]
    assert sorted(obj["kind"] for obj in made) == [
        "ConfigMap",
        "NetworkPolicy",
        "Secret",
        "Service",
        "Service",
    ]
    assert all(SCOPES[kind].includes(obj) for kind in SCOPES for obj in play.world.listed(kind))


def stranger(play: Play, name: str, **meta: Any) -> tuple[Effect, ...]:
    """Return the effects for a job that needs a ConfigMap which the controller does not watch."""
    ref = Ref(CONFIG_MAP, "default", name)
    play.world.remove(ref)
    play.world.strangers[ref] = {"metadata": {"name": name, "uid": "u", **meta}}
    return play.decide()


def test_what_somebody_else_has_made_is_used_as_it_is_and_told() -> None:
    play = Play(job(task("a"), plugins={"svc": []}))
    told, again = stranger(play, "j-svc")
    assert isinstance(told, Emit)
    assert (told.reason, told.message) == (
        "NameTaken",
        "ConfigMap default/j-svc was not created for this job: the job uses the object but does"
        " not change it",
    )
    assert again == Again(10.0)


def test_what_volcano_has_made_for_the_job_gets_the_label_and_is_put_right() -> None:
    manifest = job(task("a"), plugins={"svc": []})
    play = Play(manifest)
    data = data_of(play, CONFIG_MAP, "j-svc")["data"]
    [patch] = stranger(play, "j-svc", ownerReferences=[owner_reference(JOB, manifest)])
    body = {"metadata": {"labels": {"volcano.sh/job-name": "j"}}, "data": data}
    assert patch == Patch(CONFIG_MAP, "default", "j-svc", body, "u")


def test_what_an_earlier_job_has_left_is_waited_for() -> None:
    manifest = job(task("a"), plugins={"svc": []})
    reference = {**owner_reference(JOB, manifest), "uid": "another"}
    assert stranger(Play(manifest), "j-svc", ownerReferences=[reference]) == (Again(1.0),)


# --- ssh -----------------------------------------------------------------------------------------


def test_ssh() -> None:
    play = Play(job(with_start(task("m")), task("w", 2), plugins={"ssh": []}))
    data = data_of(play, SECRET, "j-ssh")["data"]
    assert {key: b64decode(value).decode() for key, value in data.items()} == {
        "id_rsa": "private\n",
        "id_rsa.pub": "ssh-rsa public\n",
        "authorized_keys": "ssh-rsa public\n",
        "config": (
            "StrictHostKeyChecking no\n"
            "UserKnownHostsFile /dev/null\n"
            "Host j-m-0\n  HostName j-m-0.j\n"
            "Host j-w-0\n  HostName j-w-0.j\n"
            "Host j-w-1\n  HostName j-w-1.j\n"
        ),
    }
    spec = play.pod("m-0")["spec"]
    names = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
    items = [{"key": name, "path": f".ssh/{name}"} for name in names]
    secret = {"secretName": "j-ssh", "items": items, "defaultMode": 0o600}
    assert spec["volumes"] == [{"name": "j-ssh", "secret": secret}]
    mount = {"name": "j-ssh", "mountPath": "/root/.ssh", "subPath": ".ssh"}
    assert spec["containers"][0]["volumeMounts"] == [mount]
    assert spec["initContainers"][0]["volumeMounts"] == [mount]


def test_ssh_with_arguments() -> None:
    arguments = [
        "--ssh-key-file-path=/home/me/.ssh",
        "--ssh-private-key=mine",
        "--ssh-public-key=shown",
        "--ssh-port=2222",
    ]
    play = Play(job(task("m"), plugins={"ssh": arguments}))
    data = data_of(play, SECRET, "j-ssh")["data"]
    found = {key: b64decode(value).decode() for key, value in data.items()}
    assert found["id_rsa"] == "mine"
    assert found["authorized_keys"] == "shown"
    assert found["config"].endswith("Host j-m-0\n  HostName j-m-0.j\n  Port 2222\n")
    spec = play.pod("m-0")["spec"]
    assert spec["volumes"][0]["secret"]["defaultMode"] == 0o644
    assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == "/home/me/.ssh"


# --- frameworks ----------------------------------------------------------------------------------


def test_pytorch() -> None:
    manifest = job(task("master"), task("worker", 2), task("logs"), plugins={"pytorch": []})
    shared = {"MASTER_ADDR": "j-master-0.j", "MASTER_PORT": "23456", "WORLD_SIZE": "3"}
    ranks = {}
    for name, index in (("master", 0), ("worker", 0), ("worker", 1), ("logs", 0)):
        pod = pod_of(manifest, name, index)
        found = env(pod)
        assert shared.items() <= found.items()
        assert "VC_WORKER_HOSTS" in found  # the framework plugin adds svc
        ranks[f"{name}-{index}"] = found.get("RANK")
        port = {"name": "pytorchjob-port", "containerPort": 23456, "protocol": "TCP"}
        assert pod["spec"]["containers"][0]["ports"] == [port]
        assert "initContainers" not in pod["spec"]
    assert ranks == {"master-0": "0", "worker-0": "1", "worker-1": "2", "logs-0": None}


def test_pytorch_with_arguments() -> None:
    arguments = [
        "--master=head",
        "--worker=hands",
        "--port=7777",
        "--wait-master-enabled=true",
        "--wait-master-timeout=60",
        "--wait-master-image=alpine",
    ]
    hands = task("hands")
    hands["template"]["spec"]["containers"] = [container(ports=[{"containerPort": 7777}])]
    manifest = job(task("head"), hands, plugins={"pytorch": arguments})
    pod = pod_of(manifest, "hands")
    assert env(pod)["MASTER_PORT"] == "7777"
    assert pod["spec"]["containers"][0]["ports"] == [{"containerPort": 7777}]
    [wait] = pod["spec"]["initContainers"]
    assert (wait["name"], wait["image"]) == ("wait-for-master", "alpine")
    assert "nc -z -w 2 j-head-0.j 7777" in wait["command"][2]
    assert "$(date +%s)+60" in wait["command"][2]
    assert "initContainers" not in pod_of(manifest, "head")["spec"]


def test_pytorch_without_a_master_adds_nothing() -> None:
    assert "MASTER_ADDR" not in env(pod_of(job(task("a"), plugins={"pytorch": []}), "a"))


def test_tensorflow() -> None:
    manifest = job(
        task("ps"),
        task("worker", 2),
        task("boss"),
        task("tensorboard"),
        plugins={"tensorflow": ["--port=5000", "--chief=boss"]},
    )
    cluster = (
        '{"cluster":{"ps":["j-ps-0.j:5000"],"worker":["j-worker-0.j:5000","j-worker-1.j:5000"],'
        '"chief":["j-boss-0.j:5000"]},"task":'
    )
    places = {
        ("ps", 0): '{"type":"ps","index":0}}',
        ("worker", 1): '{"type":"worker","index":1}}',
        ("boss", 0): '{"type":"chief","index":0}}',
        ("tensorboard", 0): '{"type":"tensorboard","index":0}}',
    }
    for (name, index), place in places.items():
        config = env(pod_of(manifest, name, index))["TF_CONFIG"]
        assert config == cluster + place
        json.loads(config)


def test_tensorflow_alone_needs_no_cluster() -> None:
    assert "TF_CONFIG" not in env(pod_of(job(task("a"), plugins={"tensorflow": []}), "a"))


def test_mpi() -> None:
    manifest = job(with_start(task("master")), task("worker", 2), plugins={"mpi": []})
    master, worker = pod_of(manifest, "master"), pod_of(manifest, "worker")
    for which in ("containers", "initContainers"):
        assert env(master, which)["MPI_HOST"] == "j-worker-0.j,j-worker-1.j"
        port = {"name": "mpijob-port", "containerPort": 22, "protocol": "TCP"}
        assert master["spec"][which][0]["ports"] == [port]
    assert "MPI_HOST" not in env(worker)
    volumes = [volume["name"] for volume in worker["spec"]["volumes"]]
    assert volumes == ["j-svc", "j-ssh"]  # the framework plugin adds svc and ssh


def test_mpi_of_a_master_alone_names_no_hosts() -> None:
    master = pod_of(job(task("master"), plugins={"mpi": []}), "master")
    assert "MPI_HOST" not in env(master)
    assert [port["name"] for port in master["spec"]["containers"][0]["ports"]] == ["mpijob-port"]


def test_ray() -> None:
    head, worker = task("head"), task("worker", 2)
    head["template"]["spec"]["containers"] = [container() | {"name": "head"}]
    worker["template"]["spec"]["containers"] = [container() | {"name": "worker"}, container()]
    play = Play(job(head, worker, plugins={"ray": []}))
    [first] = play.pod("head-0")["spec"]["containers"]
    assert first["command"] == [
        "sh",
        "-c",
        "ray start --head --block --dashboard-host=0.0.0.0 --port=6379"
        " --dashboard-port=8265 --ray-client-server-port=10001",
    ]
    assert [(port["name"], port["containerPort"]) for port in first["ports"]] == [
        ("gcs", 6379),
        ("dashboard", 8265),
        ("client-server", 10001),
    ]
    second, other = play.pod("worker-1")["spec"]["containers"]
    assert second["command"] == ["sh", "-c", "ray start --block --address=j-head-0.j:6379"]
    assert "command" not in other
    assert data_of(play, SERVICE, "j-head-svc")["spec"] == {
        "selector": {**SELECTOR, "volcano.sh/task-spec": "head"},
        "ports": [
            {"name": "gcs", "port": 6379, "targetPort": "gcs", "protocol": "TCP"},
            {"name": "dashboard", "port": 8265, "targetPort": "dashboard", "protocol": "TCP"},
            {
                "name": "client-server",
                "port": 10001,
                "targetPort": "client-server",
                "protocol": "TCP",
            },
        ],
    }


def test_hcclrank() -> None:
    manifest = job(task("master", 2), task("worker", 2), task("x"), plugins={"hcclrank": []})
    ranks = [
        pod_of(manifest, name, index)["metadata"]["annotations"].get("hccl/rankIndex")
        for name, index in (("master", 1), ("worker", 0), ("worker", 1), ("x", 0))
    ]
    assert ranks == ["1", "2", "3", None]


def test_hcclrank_takes_the_rank_that_is_there() -> None:
    own = task("x")
    own["template"]["spec"]["containers"] = [container(env=[{"name": "RANK", "value": "7"}])]
    pod = pod_of(job(own, plugins={"hcclrank": []}), "x")
    assert pod["metadata"]["annotations"]["hccl/rankIndex"] == "7"
    both = job(task("master"), task("worker", 2), plugins={"hcclrank": [], "pytorch": []})
    pod = pod_of(both, "worker", 1)
    assert pod["metadata"]["annotations"]["hccl/rankIndex"] == env(pod)["RANK"] == "2"


# --- arguments -----------------------------------------------------------------------------------

FLAGS = (("name", "x"), ("port", 22), ("open", False))


@pytest.mark.parametrize(
    ("arguments", "values", "problem"),
    [
        ((), {"name": "x", "port": 22, "open": False}, None),
        (("--name=y", "-port=3", "-open"), {"name": "y", "port": 3, "open": True}, None),
        (("--name", "y", "--port", "3"), {"name": "y", "port": 3, "open": False}, None),
        (("--open=false", "--name="), {"name": "", "port": 22, "open": False}, None),
        (
            ("--port=3", "--no", "--name=y"),
            {"name": "x", "port": 3, "open": False},
            "'--no' is not one of --name, --port, --open",
        ),
        (
            ("--port=a",),
            {"name": "x", "port": 22, "open": False},
            "'--port=a': 'a' is not a whole number",
        ),
        (
            ("--open=maybe",),
            {"name": "x", "port": 22, "open": False},
            "'--open=maybe': 'maybe' is not true or false",
        ),
        (("word",), {"name": "x", "port": 22, "open": False}, "'word' is not one of --name"),
    ],
)
def test_arguments(arguments: tuple[str, ...], values: dict[str, Any], problem: str | None) -> None:
    flags = read_flags(arguments, FLAGS)
    assert flags.values == values
    assert len(flags.problems) == (problem is not None)
    assert all(found.startswith(problem or "") for found in flags.problems)


def test_a_plugin_that_nobody_has_is_told() -> None:
    found, _ = parse_job(job(task("a"), plugins={"x": [], "mpi": ["--port=no"]}))
    assert found is not None
    assert plugin_problems(found) == (
        f"unable to find job plugin: x; known plugins are {', '.join(PLUGINS)}",
        "plugin mpi: argument '--port=no': 'no' is not a whole number",
    )
    play = Play(job(task("a"), plugins={"x": []}))
    assert play.status["state"]["reason"] == "PluginError"
    assert play.reasons() == ["PluginError"]
    assert play.pods == ["a-0"]
