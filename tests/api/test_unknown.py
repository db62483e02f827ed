from __future__ import annotations

from typing import Any

import pytest

from optsched.api import kinds
from optsched.api.crds import unknown_fields


def strangers(kind: kinds.Kind, obj: Any) -> dict[str, str]:
    return {error.path: error.message for error in unknown_fields(kind, obj)}


@pytest.mark.parametrize(
    ("kind", "obj", "path", "meant"),
    [
        (kinds.QUEUE, {"spec": {"capabilty": {}}}, "spec.capabilty", "capability"),
        (kinds.QUEUE, {"spec": {"reclaimible": True}}, "spec.reclaimible", "reclaimable"),
        (
            kinds.QUEUE,
            {"spec": {"guarantee": {"resources": {}}}},
            "spec.guarantee.resources",
            "resource",
        ),
        (kinds.QUEUE, {"metadata": {"anotations": {}}}, "metadata.anotations", "annotations"),
        (kinds.QUEUE, {"Spec": {}}, "Spec", "spec"),
        (kinds.QUEUE, {"extendClusters": []}, "extendClusters", ""),
        (
            kinds.QUEUE,
            {"spec": {"extendClusters": [{"nmae": ""}]}},
            "spec.extendClusters[0].nmae",
            "name",
        ),
        (
            kinds.QUEUE,
            {"spec": {"dra": {"deserved": {"h100": {"counts": 1}}}}},
            "spec.dra.deserved[h100].counts",
            "count",
        ),
        (kinds.POD_GROUP, {"spec": {"minMembers": 4}}, "spec.minMembers", "minMember"),
        (
            kinds.POD_GROUP,
            {"spec": {"subGroupPolicy": [{}, {"subGroupsize": 4}]}},
            "spec.subGroupPolicy[1].subGroupsize",
            "subGroupSize",
        ),
        (kinds.PRIORITY_CLASS, {"valeu": 4}, "valeu", "value"),
    ],
)
def test_a_misspelt_field_is_found_with_what_was_meant(
    kind: kinds.Kind, obj: Any, path: str, meant: str
):
    found = strangers(kind, obj)
    assert list(found) == [path]
    assert found[path].startswith("is the value of an unknown field; ")
    if meant:
        assert found[path].endswith(f"did you mean {meant}?")


def test_a_field_like_no_other_gets_the_list():
    assert strangers(kinds.QUEUE, {"spec": {"guarantee": {"zzz": 1}}}) == {
        "spec.guarantee.zzz": "is the value of an unknown field; known fields are resource"
    }


def test_all_strangers_are_found():
    obj = {"metadata": {"nam": ""}, "spec": {"wieght": 1, "prioritty": 2}, "stats": {}}
    assert set(strangers(kinds.QUEUE, obj)) == {
        "metadata.nam",
        "spec.wieght",
        "spec.prioritty",
        "stats",
    }


def test_names_that_users_choose_are_no_strangers():
    queue = {"metadata": {"labels": {"any": "x"}}, "spec": {"capability": {"my.org/npu": 1}}}
    group = {"spec": {"minTaskMember": {"anything": 1}}}
    assert strangers(kinds.QUEUE, queue) == {}
    assert strangers(kinds.POD_GROUP, group) == {}


@pytest.mark.parametrize("obj", [None, [], "x", {}, {"spec": None}, {"spec": []}])
def test_objects_without_fields_have_no_strangers(obj: Any):
    assert strangers(kinds.QUEUE, obj) == {}


def test_kinds_that_are_not_ours_are_left_alone():
    assert strangers(kinds.POD, {"spec": {"conatiners": []}}) == {}
