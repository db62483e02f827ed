from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from optsched.cluster.selectors import NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.snapshot import Claim, Gang, Owner, Snapshot
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.instance_files import read_instance
from optsched.formats.snapshots.writer import encode, write_bundle
from optsched.formats.traces.openb_cluster import read_openb
from tests.formats.objects import node, pod
from tests.support.effort import num_examples
from tests.support.strategies import snapshots
from tests.support.synthetic_clusters import GpuCluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=num_examples(60)
)
@given(snapshots())
def test_what_is_encoded_is_read_as_the_same_snapshot(snapshot: Snapshot):
    found = assemble(encode(snapshot))
    assert found.snapshot == snapshot
    assert found.problems == ()
    assert found.ignored == found.elsewhere == {}


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=num_examples(30)
)
@given(snapshots())
def test_objects_are_json_and_every_one_has_a_name_of_its_own(snapshot: Snapshot):
    objects = encode(snapshot)
    assert json.loads(json.dumps(objects)) == objects
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ["dump.yaml", "dump.yml", "dump.json"])
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=num_examples(10),
)
@given(snapshot=snapshots())
def test_a_bundle_is_an_instance(tmp_path: Path, name: str, snapshot: Snapshot):
    write_bundle(encode(snapshot), tmp_path / name)
    found = read_instance(tmp_path / name)
    assert found.snapshot == snapshot
    assert found.problems == found.notices == ()


def test_a_bundle_may_hold_any_objects(tmp_path: Path):
    write_bundle([node(), pod()], tmp_path / "a.yaml")
    assert read_instance(tmp_path / "a.yaml").snapshot == assemble([node(), pod()]).snapshot
    with pytest.raises(ValueError, match=r"end in \.yaml, \.yml, \.json"):
        write_bundle([], tmp_path / "a.txt")


def test_a_generated_cluster_keeps_all_but_its_namespaces():
    made = GpuCluster(num_nodes=20, num_gangs=20, num_ratios=3).snapshot()
    found = assemble(encode(made))
    assert found.problems == ()
    assert (found.snapshot.nodes, found.snapshot.gangs) == (made.nodes, made.gangs)
    assert found.snapshot.queues == made.queues


def test_a_trace_survives(tmp_path: Path):
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,1024,2,T4\n"
    )
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time\n"
        "p,1000,1,1,460,T4|P100,5\nq,1,0,2,1000,,7\n"
    )
    snapshot, _ = read_openb(tmp_path / "pods.csv")
    assert assemble(encode(snapshot)).snapshot == snapshot


def test_a_wait_that_no_storage_class_can_ask_for_is_refused():
    odd: Any = NodeSelector((NodeTerm((Requirement("zone", Operator.EXISTS),)),))
    claim = Claim("a/c", nodes=odd, waits_for_consumer=True)
    with pytest.raises(ValueError, match="can only list allowed values of labels"):
        encode(Snapshot(0, claims={"a/c": claim}))


def test_the_owner_of_a_gang_and_recorded_answers_come_back() -> None:
    owner = Owner("batch.volcano.sh/v1alpha1", "Job", "train", "7")
    gang = Gang("ns/g", owner=owner, uid="1")
    answers = (("predicate ns/a", '{"refused": {}}'), ("jobReady ns/g 2", '{"failure": "late"}'))
    found = assemble(encode(Snapshot(0, gangs=(gang,), answers=answers)))
    assert found.problems == ()
    assert found.snapshot.gangs[0].owner == owner
    assert found.snapshot.answers == answers


@pytest.mark.parametrize(
    "wrong",
    [
        3,
        "text",
        {"question": "a"},
        {"question": "a", "reply": "[1]"},
        {"question": 1, "reply": "{}"},
        {"question": "a", "reply": "{"},
    ],
)
def test_an_answer_that_is_none_is_told_and_the_others_stay(wrong: object) -> None:
    good = ("a", "{}")
    dump = {**encode(Snapshot(0, answers=(good,)))[0]}
    dump["answers"] = [wrong, *dump["answers"]]
    found = assemble([dump])
    assert found.snapshot.answers == (good,)
    (problem,) = found.problems
    assert "answers[0]" in str(problem)
    assert "write a question, and a reply in JSON" in str(problem)
