"""The job controller handles every value in a job, its PodGroup, its pods or a Command."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optsched.api.kinds import COMMAND, JOB, POD, POD_GROUP, Ref
from tests.support.effort import num_examples
from tests.support.vcjobs import Play, container, job, policy, task

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "Running", "1"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["a", "name", "phase", "env", "value"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


def whole() -> dict[str, Any]:
    """Return a job with a value in every field."""
    one = task(
        "a",
        2,
        policies=[policy("PodPending", "RestartTask", timeout="1s")],
        dependsOn={"name": ["b"], "iteration": "any"},
        partitionPolicy={"totalPartitions": 2, "partitionSize": 1},
    )
    one["template"]["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    spec = one["template"]["spec"]
    ports = [{"containerPort": 1}]
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
    spec["containers"] = [container(env=[], ports=ports, volumeMounts=[], resources=resources)]
    spec |= {"initContainers": [container()], "volumes": [], "hostname": "", "subdomain": ""}
    plugins = {name: [] for name in ("env", "svc", "ssh", "pytorch", "mpi", "ray", "tensorflow")}
    volumes = [{"mountPath": "/a", "volumeClaim": {}}]
    found = job(
        one, task("b"), plugins=plugins, volumes=volumes, policies=[policy("*", "AbortJob")]
    )
    found["metadata"] |= {"labels": {}, "annotations": {}}
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to every value inside a nested value."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return [path, *(p for key, each in inner for p in places(each, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


PLACES = [("spec", *path) for path in places(whole()["spec"]) if path]
quick = settings(
    max_examples=num_examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@quick
@given(st.sampled_from(PLACES), anything)
def test_a_job_with_anything_anywhere(path: tuple[Any, ...], new: Any) -> None:
    manifest = whole()
    put(manifest, path, new)
    play = Play(manifest)
    play.run()
    play.delete(*play.pods[:1])
    play.gone()


@quick
@given(st.sampled_from(["metadata", "spec", "status"]), anything)
def test_objects_of_a_job_that_somebody_has_spoilt(part: str, new: Any) -> None:
    play = Play(job(task("a", 2), plugins={"svc": []}, policies=[policy("*", "RestartJob")]))
    for kind in (POD, POD_GROUP):
        for obj in list(play.world.listed(kind)):
            ref = Ref(kind, "default", obj["metadata"]["name"])
            spoilt = copy.deepcopy(new)
            if part == "metadata":
                spoilt = {**obj["metadata"], "labels": new, "annotations": new}
            play.world.change(ref, lambda o, s=spoilt: o.update({part: s}))
    play.settle()


@quick
@given(st.sampled_from(["action", "target", "reason", "message"]), anything)
def test_a_command_with_anything_in_it(part: str, new: Any) -> None:
    play = Play(job(task("a", 2)))
    target = {"apiVersion": JOB.api_version, "kind": "Job", "name": "j", "uid": "j-uid"}
    body = {"metadata": {"name": "c"}, "action": "AbortJob", "target": target}
    play.world.put(COMMAND, {**body, part: new})
    play.settle()


@quick
@given(anything)
def test_a_status_with_anything_in_it(new: Any) -> None:
    names = (
        "state",
        "restarted",
        "deletions",
        "conditions",
        "taskStatusCount",
        "version",
        "controlledResources",
    )
    for name in names:
        manifest = job(task("a", 2), policies=[policy("PodEvicted", "RestartJob")])
        manifest["status"] = {"state": {"phase": "Running"}, name: new}
        Play(manifest).run()
