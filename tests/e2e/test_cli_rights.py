"""Users with a part of the permissions, and requests that change nothing, on a real cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from optsched.api import kinds
from optsched.api.kinds import collection_path
from optsched.cli import legacy
from tests.cli.test_exit_codes import ACTS, run
from tests.support.api import until
from tests.support.livejobs import LiveJob
from tests.support.pages import ROOT
from tests.support.vcjobs import job, task
from tests.support.webhooks import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from click.testing import Result

    from optsched.local.plane import ControlPlane
    from tests.support.live import Site
    from tests.support.shell import Shell

pytestmark = pytest.mark.e2e

RBAC: Final = "rbac.authorization.k8s.io"
READ: Final = ("get", "list")
CONTAINER: Final = {"name": "m", "image": "none"}
TASKS: Final = {
    "tasks": [{"name": "a", "replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}}]
}
Raw = dict[str, Any]
Rules = list[Raw]

QUEUES_OF_ALL: Final = 'resource "queues" in API group "scheduling.volcano.sh" at the cluster scope'
JOBS_HERE: Final = 'resource "jobs" in API group "batch.volcano.sh" in the namespace'
PODS_HERE: Final = 'resource "pods" in API group "" in the namespace'
COMMANDS_HERE: Final = 'resource "commands" in API group "bus.volcano.sh" in the namespace'
FLOWS_HERE: Final = 'resource "jobflows" in API group "flow.volcano.sh" in the namespace'
TEMPLATES_HERE: Final = 'resource "jobtemplates" in API group "flow.volcano.sh" in the namespace'
NODES: Final = 'list resource "nodes" in API group "" at the cluster scope'

OF_THE_CLUSTER: Final[Mapping[str, str]] = {
    "queue list": f"list {QUEUES_OF_ALL}",
    "queue list --tree": f"list {QUEUES_OF_ALL}",
    "queue get one": f"get {QUEUES_OF_ALL}",
    "queue create new": f"create {QUEUES_OF_ALL}",
    "queue operate one -a close": f"get {QUEUES_OF_ALL}",
    "queue operate one -a open": f"get {QUEUES_OF_ALL}",
    "queue operate one -a update -w 2": f"get {QUEUES_OF_ALL}",
    "queue delete one": f"get {QUEUES_OF_ALL}",
    "vqueues": f"list {QUEUES_OF_ALL}",
    "job list -A": 'list resource "jobs" in API group "batch.volcano.sh" at the cluster scope',
    "job list -n kube-system": f'list {JOBS_HERE} "kube-system"',
    "job list --position": NODES,
    "job run other -n kube-system": f'create {JOBS_HERE} "kube-system"',
    "pod list": f"list {PODS_HERE}",
    "pod list -q default": f"list {PODS_HERE}",
    "snapshot": NODES,
    "what-if -f {Job}": NODES,
}
"""What a user with the role of tenants in one namespace may not do."""

OF_THE_NAMESPACE: Final[Mapping[str, str]] = {
    "job run -f {Job}": f"create {JOBS_HERE}",
    "job run new": f"create {JOBS_HERE}",
    "vsub -n new": f"create {JOBS_HERE}",
    "job suspend one": f"create {COMMANDS_HERE}",
    "vsuspend -n one": f"create {COMMANDS_HERE}",
    "job resume one": f"create {COMMANDS_HERE}",
    "vresume -n one": f"create {COMMANDS_HERE}",
    "job delete one": f"delete {JOBS_HERE}",
    "vcancel -n one": f"delete {JOBS_HERE}",
    "jobflow create -f {JobFlow}": f"create {FLOWS_HERE}",
    "jobflow delete one": f"delete {FLOWS_HERE}",
    "jobtemplate create -f {JobTemplate}": f"create {TEMPLATES_HERE}",
    "jobtemplate delete one": f"delete {TEMPLATES_HERE}",
}
"""What a user who may only read the kinds of optsched in a namespace may not do."""

NO_EVENTS: Final = "reasons for missing pods are not shown: you may not list events in namespace {}"
ALLOWED: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "job list": (0, (NO_EVENTS,)),
    "job list -q default": (0, (NO_EVENTS,)),
    "job list -o wide": (0, (NO_EVENTS,)),
    "job list -o json": (0, ()),
    "vjobs": (0, (NO_EVENTS,)),
    "job view one": (0, ("the events are not shown: you may not list events in namespace {}",)),
    "job explain one": (
        8,
        (
            "the position and the expected start are not shown: you may not list nodes",
            NO_EVENTS,
        ),
    ),
    "jobflow list": (0, ()),
    "jobflow get one": (0, ()),
    "jobflow describe": (0, ()),
    "jobtemplate list": (0, ()),
    "jobtemplate get one": (0, ()),
    "jobtemplate describe one": (0, ()),
}
"""Exit codes and remarks of the commands that a user who may only read can run."""


class User:
    """A service account of a site with the given permissions, and its kubeconfig."""

    def __init__(self, site: Site, plane: ControlPlane, folder: Path, name: str) -> None:
        self._site, self._folder, self._name = site, folder, name
        self._subject = {"kind": "ServiceAccount", "name": name, "namespace": site.name}
        site.api.post(
            f"/api/v1/namespaces/{site.name}/serviceaccounts", {"metadata": {"name": name}}
        )
        token = plane.kubectl("create", "token", name, "-n", site.name).strip()
        config = json.loads(plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        config["contexts"][0]["context"]["namespace"] = site.name
        self._kubeconfig = site.file(f"{name}.conf", json.dumps(config))

    def grant(self, rules: Rules, *, everywhere: bool = False) -> list[str]:
        """Grant permissions in the namespace or everywhere; return the paths of cluster objects."""
        kind = "ClusterRole" if everywhere else "Role"
        space = "" if everywhere else f"/namespaces/{self._site.name}"
        name = f"{self._site.name}-{self._name}"
        bodies: list[Raw] = [
            {"kind": kind, "rules": rules},
            {
                "kind": f"{kind}Binding",
                "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
                "subjects": [self._subject],
            },
        ]
        paths = []
        for body in bodies:
            path = f"/apis/{RBAC}/v1{space}/{body['kind'].lower()}s"
            meta = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
            self._site.api.post(path, {**meta, **body})
            paths.append(f"{path}/{name}")
        return paths if everywhere else []

    def __call__(self, line: str) -> Result:
        return run(line, self._folder, env={"KUBECONFIG": str(self._kubeconfig)})

    def assert_forbidden(self, line: str, what: str) -> None:
        """Check that a command ends with 5 and one sentence about the missing permission."""
        result = self(line)
        assert (result.exit_code, result.stdout) == (5, ""), (line, result.output)
        (sentence,) = result.stderr.splitlines()
        assert sentence.startswith("Error: 403 Forbidden: "), line
        user = f"system:serviceaccount:{self._site.name}:{self._name}"
        assert f'User "{user}" cannot {what}' in sentence, line


@pytest.fixture
def new_user(
    site: Site, control_plane: ControlPlane, tmp_path: Path
) -> Iterator[Callable[..., User]]:
    """Yield a function that creates a user with permissions in the namespace or everywhere."""
    paths: list[str] = []

    def create(name: str, rules: Rules, *, everywhere: bool = False) -> User:
        user = User(site, control_plane, tmp_path, name)
        paths.extend(user.grant(rules, everywhere=everywhere))
        return user

    yield create
    for path in paths:
        site.api.delete(path)


def rules_of(role: str) -> Rules:
    """Return the rules of a role that the chart installs for tenants."""
    text = (ROOT / "deploy" / "volcano-development.yaml").read_text("utf-8")
    found = [each for each in yaml.safe_load_all(text) if each]
    (rules,) = (each["rules"] for each in found if each["metadata"]["name"] == role)
    return list(rules)


def stored(site: Site) -> dict[str, str]:
    """Return the resource versions of the objects that commands could write."""
    here = (kinds.JOB, kinds.POD, kinds.POD_GROUP, kinds.COMMAND, kinds.JOB_FLOW)
    places: list[tuple[kinds.Kind, str | None]] = [
        *((kind, site.name) for kind in (*here, kinds.JOB_TEMPLATE)),
        *((kinds.QUEUE, None), (kinds.JOB, "kube-system"), (kinds.COMMAND, SYSTEM)),
    ]
    return {
        obj["metadata"]["uid"]: obj["metadata"]["resourceVersion"]
        for kind, namespace in places
        for obj in site.api.items(collection_path(kind, namespace))
    }


@pytest.fixture
def filled(site: Site) -> Site:
    """Return a site with a waiting job, a JobFlow and a JobTemplate named `one`."""
    body = job(task("w", 2), name="one", minAvailable=2)
    body["metadata"].pop("uid", None)
    path = collection_path(kinds.JOB, site.name)
    site.api.post(path, {**body, "metadata": {"name": "one", "namespace": site.name}})
    state = {"phase": "Pending", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    site.api.patch(f"{path}/one/status", {"status": {"state": state}})
    for kind, spec in ((kinds.JOB_FLOW, {"flows": [{"name": "a"}]}), (kinds.JOB_TEMPLATE, TASKS)):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}}
        site.api.post(collection_path(kind, site.name), {**body, "spec": spec})
    return site


def test_a_user_who_may_only_read_gets_what_he_may_read_and_writes_nothing(
    filled: Site, new_user: Callable[..., User]
) -> None:
    viewer = new_user("viewer", rules_of("volcano-tenant-view"))
    before = stored(filled)
    for line, what in {**OF_THE_CLUSTER, **OF_THE_NAMESPACE}.items():
        viewer.assert_forbidden(line, what)
    for line, (code, remarks) in ALLOWED.items():
        result = viewer(line)
        assert result.exit_code == code, (line, result.output)
        assert result.stderr.splitlines() == [each.format(filled.name) for each in remarks], line
        assert "one" in result.stdout, line
    assert stored(filled) == before


def test_every_command_of_a_cluster_is_tried_without_a_permission() -> None:
    """`job explain`, `job view`, `jobflow get` and others are tried with their remarks.

    A forbidden watch follows a permitted read, so that another test tries it.
    """
    lines = [*OF_THE_CLUSTER, *OF_THE_NAMESPACE, *ALLOWED]
    names = {name for name in ACTS if not any(f"{line} ".startswith(f"{name} ") for line in lines)}
    assert names == {"job watch"}


def test_a_user_who_may_edit_a_namespace_changes_no_queue(
    filled: Site, new_user: Callable[..., User]
) -> None:
    editor = new_user("editor", rules_of("volcano-tenant-edit"))
    before = stored(filled)
    for line, what in OF_THE_CLUSTER.items():
        editor.assert_forbidden(line, what)
    assert stored(filled) == before
    for line in OF_THE_NAMESPACE:
        if "delete" not in line and "cancel" not in line and "vsub" not in line:
            assert editor(line).exit_code == (4 if line == "job run new" else 0), line
    assert len(stored(filled)) > len(before)


def test_a_permission_that_is_missing_in_the_middle_of_a_command_is_named(
    filled: Site, new_user: Callable[..., User]
) -> None:
    """The user may get objects, so that the first request of a command succeeds."""
    queue = filled.queue("used")
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": list(READ)}]
    reader = new_user("reader", rules, everywhere=True)
    before = stored(filled)
    for line, what in {
        f"queue operate {queue} -a close": f'create {COMMANDS_HERE} "{filled.name}"',
        f"queue operate {queue} -a update -w 9": f"patch {QUEUES_OF_ALL}",
        f"queue delete {queue}": f"delete {QUEUES_OF_ALL}",
        **OF_THE_NAMESPACE,
    }.items():
        reader.assert_forbidden(line, what)
    watch = reader("job watch one --timeout 60s")
    assert watch.exit_code == 5
    assert f'cannot watch {JOBS_HERE} "{filled.name}"' in watch.stderr
    assert watch.stderr.count("\n") == 1
    for line in ("job list", "job explain one", "job list --position", "queue list", "snapshot"):
        result = reader(line)
        assert result.exit_code == (8 if "explain" in line else 0), (line, result.output)
        assert "forbidden" not in result.output.lower()
    # The API server would reject the job, so the job never starts.
    never = reader("what-if -f {Job}")
    assert never.exit_code == 9
    assert 'cannot create resource "jobs"' in never.stdout
    assert stored(filled) == before


def test_a_queue_of_which_a_user_may_not_list_the_others_stays_as_it_is(
    filled: Site, new_user: Callable[..., User]
) -> None:
    queue = filled.queue("used")
    verbs = ["get", "update", "patch", "delete"]
    rule = {"apiGroups": ["scheduling.volcano.sh"], "resources": ["queues"], "verbs": verbs}
    owner = new_user("owner", [{**rule, "resourceNames": [queue]}], everywhere=True)
    before = stored(filled)
    for line in (f"queue operate {queue} -a close", f"queue delete {queue}"):
        owner.assert_forbidden(line, f"list {QUEUES_OF_ALL}")
    assert stored(filled) == before
    changed = owner(f"queue operate {queue} -a update -w 9")
    assert changed.stdout == f"update queue {queue} successfully\n"


# --- requests that change nothing -----------------------------------------------------------------


def test_a_request_for_a_job_says_what_has_no_effect(site: Site, shell: Shell) -> None:
    site.nodes(1)
    site.controllers()
    site.scheduler()
    live = LiveJob(site, job(task("w", 1), name="one"))
    live.await_count("Running", running=1)
    uids = live.uids
    assert shell("job resume one") == "job one is Running already\n"
    assert shell(f"-n one -N {site.name}", legacy.vresume) == "job one is Running already\n"
    await_no_command(site)
    assert (live.uids, live.phase) == (uids, "Running")

    assert shell("job suspend one") == "suspend job one successfully\n"
    live.await_phase("Aborted")
    assert shell("job suspend one") == "job one is Aborted already\n"
    assert shell(f"-n one -N {site.name}", legacy.vsuspend) == "job one is Aborted already\n"
    await_no_command(site)
    assert (live.phase, live.uids) == ("Aborted", {})

    assert shell("job resume one") == "resume job one successfully\n"
    live.await_count("Running", running=1)
    live.succeed("w-0")
    live.await_phase("Completed")
    ended = live.raw["metadata"]["resourceVersion"]
    for verb, old in (("suspend", legacy.vsuspend), ("resume", legacy.vresume)):
        for result in (
            shell.try_(f"job {verb} one"),
            shell.try_(f"-n one -N {site.name}", old),
        ):
            assert (result.exit_code, result.stdout) == (4, "")
            assert result.stderr == f"Error: job one is Completed: there is nothing to {verb}\n"
    assert site.api.items(collection_path(kinds.COMMAND, site.name)) == []
    assert live.raw["metadata"]["resourceVersion"] == ended
    assert shell("job delete one") == "delete job one successfully\n"
    again = shell.try_("job delete one")
    assert again.exit_code == 3
    assert again.stderr == f"Error: job one does not exist in namespace {site.name}\n"


def await_no_command(site: Site) -> None:
    """Wait until the controllers have carried out all Commands."""
    path = collection_path(kinds.COMMAND, site.name)
    until(lambda: not site.api.items(path), "every Command is carried out")


def test_a_job_or_flow_that_exists_is_not_changed_by_another_creation(
    filled: Site, shell: Shell, tmp_path: Path
) -> None:
    before = stored(filled)
    files = {
        "job run -f": ("Job", "batch.volcano.sh/v1alpha1", TASKS),
        "jobflow create -f": ("JobFlow", "flow.volcano.sh/v1alpha1", {"flows": [{"name": "b"}]}),
        "jobtemplate create -f": ("JobTemplate", "flow.volcano.sh/v1alpha1", TASKS),
    }
    for line, (kind, version, spec) in files.items():
        path = tmp_path / f"{kind}.json"
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": "one"}, "spec": spec}
        path.write_text(json.dumps(body))
        result = shell.try_(f"{line} {path}")
        assert (result.exit_code, result.stdout) == (4, ""), result.output
        place = f"{kind.lower()} one exists already in namespace {filled.name}"
        assert result.stderr == f"Error: {place}\n"
    clash = shell.try_(f"what-if -f {tmp_path / 'Job.json'}")
    assert (clash.exit_code, clash.stdout) == (4, "")
    assert clash.stderr.startswith(f"Error: job one exists already in namespace {filled.name}")
    assert stored(filled) == before
