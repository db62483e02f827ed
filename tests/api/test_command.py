from __future__ import annotations

from optsched.api.job import parse_command
from optsched.api.meta import OwnerReference


def test_a_command_and_its_target():
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "u"}
    found, errors = parse_command(
        {
            "metadata": {"name": "c", "namespace": "ml"},
            "action": "AbortJob",
            "target": {**target, "controller": True, "blockOwnerDeletion": True},
            "reason": "r",
            "message": "m",
        }
    )
    assert errors == ()
    assert found is not None
    assert (found.key, found.action, found.reason, found.message) == ("ml/c", "AbortJob", "r", "m")
    assert found.target == OwnerReference(
        "batch.volcano.sh/v1alpha1", "Job", "j", "u", controller=True
    )


def test_a_command_without_a_target_and_one_with_half_of_one():
    bare, errors = parse_command({"metadata": {"name": "c"}})
    assert bare is not None
    assert (bare.action, bare.target, errors) == ("", None, ())
    _, errors = parse_command({"metadata": {"name": "c"}, "target": {"kind": "Job", "name": "j"}})
    assert [error.path for error in errors] == ["target.apiVersion", "target.uid"]
    assert parse_command({})[0] is None
