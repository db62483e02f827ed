from __future__ import annotations

from collections import Counter

import pytest

from optsched.api import wellknown
from optsched.api.podgroup import group_name_of


def test_no_two_names_stand_for_one_key():
    values = [value for name, value in vars(wellknown).items() if name.isupper()]
    keys = [value for value in values if isinstance(value, str)]
    keys += [key for value in values if isinstance(value, tuple) for key in value]
    assert len(keys) > 50
    assert [key for key, times in Counter(keys).items() if times > 1] == []


@pytest.mark.parametrize(
    ("annotations", "group"),
    [
        ({}, ""),
        ({"scheduling.k8s.io/group-name": "a"}, "a"),
        ({"scheduling.volcano.sh/group-name": "b"}, "b"),
        ({"scheduling.volcano.sh/group-name": "b", "scheduling.k8s.io/group-name": "a"}, "a"),
        ({"scheduling.volcano.sh/group-name": "b", "scheduling.k8s.io/group-name": ""}, "b"),
    ],
)
def test_a_pod_belongs_to_the_group_under_either_key(annotations: dict[str, str], group: str):
    assert group_name_of(annotations) == group
