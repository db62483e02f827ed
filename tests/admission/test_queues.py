# ruff: noqa: E501  sentences are kept whole
from __future__ import annotations

from typing import Any

import pytest

from optsched.admission.world import Settings
from tests.admission.kit import ask, made, patched, queue, world

GPU = "nvidia.com/gpu"
LENGTH = "volcano.sh/hierarchy must have the same length with volcano.sh/hierarchy-weights"


def manifest(name: str = "q", annotations: Any = None, status: Any = None, **spec: Any) -> Any:
    meta = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {"metadata": meta, "spec": spec, **({"status": status} if status else {})}


def denied(obj: Any, *queues: Any, **parts: Any) -> list[str]:
    return list(ask("/queues/validate", obj, world(*queues), **parts).problems)


def tree(path: str, weights: str) -> dict[str, str]:
    return {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}


DEPT = {
    "capability": {"cpu": "32"},
    "deserved": {"cpu": "16"},
    "guarantee": {"resource": {"cpu": "8"}},
}
REFUSED = [
    pytest.param(
        manifest(weight=-1), (), ["spec.weight: -1 is out of range: write 1 to 65535"], id="weight"
    ),
    pytest.param(
        manifest(guarantee={"resource": {"cpu": "16"}}, deserved={"cpu": "8"}),
        (),
        ['spec.deserved[cpu]: Invalid value: "8": deserved[cpu]=8 must be >= guarantee[cpu]=16'],
        id="guarantee above deserved",
    ),
    pytest.param(
        manifest(deserved={"cpu": "8"}, capability={"cpu": "4", "memory": "1Gi"}),
        (),
        ['spec.deserved[cpu]: Invalid value: "8": deserved[cpu]=8 must be <= capability[cpu]=4'],
        id="deserved above capability",
    ),
    pytest.param(
        manifest(guarantee={"resource": {GPU: 8}}, capability={GPU: 4}),
        (),
        [
            f'spec.guarantee.resource[{GPU}]: Invalid value: "8": guarantee[{GPU}]=8 must be <= '
            f"capability[{GPU}]=4"
        ],
        id="guarantee above capability",
    ),
    pytest.param(
        manifest(capability={"cpu": "-1"}),
        (),
        ['spec.capability[cpu]: "-1" is negative: write an amount of zero or more'],
        id="negative amount",
    ),
    pytest.param(
        manifest(status={"state": "Closing"}),
        (),
        ['status.state: Invalid value: "Closing": queue state must be in [Open Closed]'],
        id="state",
    ),
    pytest.param(
        manifest(annotations=tree("root/a", "1/2/3")),
        (),
        [f'metadata.annotations[volcano.sh/hierarchy]: Invalid value: "root/a": {LENGTH} 1/2/3'],
        id="hierarchy lengths",
    ),
    pytest.param(
        manifest(annotations=tree("root/a", "1/x")),
        (),
        [
            'metadata.annotations[volcano.sh/hierarchy-weights]: Invalid value: "1/x": x in the '
            "1/x is invalid number: write a number such as 2 or 0.5"
        ],
        id="hierarchy weight no number",
    ),
    pytest.param(
        manifest(annotations=tree("root/a", "1/\u0662")),
        (),
        [
            'metadata.annotations[volcano.sh/hierarchy-weights]: Invalid value: "1/\u0662": \u0662 in '
            "the 1/\u0662 is invalid number: write a number such as 2 or 0.5"
        ],
        id="hierarchy weight in digits of another script",
    ),
    pytest.param(
        manifest(annotations=tree("root/a", "1/0")),
        (),
        [
            'metadata.annotations[volcano.sh/hierarchy-weights]: Invalid value: "1/0": 0 in the '
            "1/0 must be larger than 0"
        ],
        id="hierarchy weight zero",
    ),
    pytest.param(
        manifest(annotations=tree("root/sci", "1/1")),
        (queue("dev", annotations=tree("root/sci/dev", "1/1/1")),),
        [
            'metadata.annotations[volcano.sh/hierarchy]: Invalid value: "root/sci": root/sci is '
            "not allowed to be in the sub path of root/sci/dev of queue dev: only leaf "
            "queues accept jobs"
        ],
        id="hierarchy sub path",
    ),
    pytest.param(
        manifest(parent="q"),
        (),
        ["queue q cannot use itself as parent: spec.parent; name another queue"],
        id="parent is itself",
    ),
    pytest.param(
        manifest(parent="gone"),
        (),
        [
            "failed to get parent queue of queue q: spec.parent: there is no queue gone; "
            "create it first"
        ],
        id="parent is not there",
    ),
    pytest.param(
        manifest(parent="busy"),
        (queue("busy", pods=3),),
        [
            "queue busy cannot be the parent queue of queue q because it has allocated Pods: 3: "
            "wait until they end, or name another parent"
        ],
        id="parent has pods",
    ),
    pytest.param(
        manifest(parent="e"),
        tuple(queue(b, parent=a) for a, b in zip("rabcd", "abcde", strict=True)),
        [
            "queue q exceeds the maximum allowed depth of 5: spec.parent: its path would be a/b/c/d/e/q"
        ],
        id="too deep",
    ),
    pytest.param(
        manifest(parent="mid", capability={"cpu": "40"}),
        (queue("dept", **DEPT), queue("mid", parent="dept")),
        [
            "queue q capability[cpu]=40 exceeds its ancestor's capability=32: "
            "spec.capability[cpu]; the ancestor is queue dept"
        ],
        id="capability above an ancestor",
    ),
    pytest.param(
        manifest(parent="dept", deserved={"cpu": "9"}),
        (queue("dept", **DEPT), queue("other", parent="dept", deserved={"cpu": "8"})),
        [
            "parent queue dept validation failed: sum of children's deserved (cpu 17) exceeds "
            "parent's deserved limit (cpu 16): raise spec.deserved of dept or lower spec.deserved "
            "of other, q"
        ],
        id="deserved of siblings",
    ),
    pytest.param(
        manifest(parent="dept", guarantee={"resource": {"memory": "1Gi"}}),
        (queue("dept", **DEPT),),
        [
            "parent queue dept validation failed: sum of children's guarantee (memory 1Gi) "
            "exceeds parent's guarantee limit (memory 0): raise spec.guarantee of dept or lower "
            "spec.guarantee of q"
        ],
        id="guarantee of siblings",
    ),
    pytest.param(
        manifest("dept", capability={"cpu": "4"}),
        (queue("mid", parent="dept"), queue("leaf", parent="mid", capability={"cpu": "8"})),
        [
            "queue dept capability[cpu]=4 is less than its child queue leaf capability=8: spec.capability[cpu]; it must be at least as large"
        ],
        id="capability below a child",
    ),
    pytest.param(
        manifest("dept", deserved={"cpu": "4"}),
        (queue("leaf", parent="dept", deserved={"cpu": "8"}),),
        [
            "parent queue dept validation failed: sum of children's deserved (cpu 8) exceeds "
            "parent's deserved limit (cpu 4): raise spec.deserved of dept or lower "
            "spec.deserved of leaf"
        ],
        id="deserved below children",
    ),
    pytest.param(
        manifest(status={"state": "Unknown"}),
        (),
        ['status.state: Invalid value: "Unknown": queue state must be in [Open Closed]'],
        id="unknown state",
    ),
    pytest.param(
        manifest(capability={"cpu": "many"}),
        (),
        [
            'spec.capability[cpu]: "many" is not a quantity: write a number with an optional suffix, such as 500m, 2, 1.5Gi or 1e3'
        ],
        id="amount",
    ),
    pytest.param(
        manifest(deserved=[]),
        (),
        ["spec.deserved: [] is not a list of resources: write resource names with quantities"],
        id="amounts no mapping",
    ),
    pytest.param(
        manifest(weight="2"), (), ['spec.weight: "2" is not a whole number'], id="weight no number"
    ),
    pytest.param(
        manifest(reclaimable="yes"),
        (),
        ['spec.reclaimable: "yes" is not a boolean: write true or false'],
        id="reclaimable",
    ),
    pytest.param(
        manifest(dequeueStrategy="lifo"),
        (),
        ['spec.dequeueStrategy: "lifo" is not one of fifo, traverse'],
        id="strategy",
    ),
    pytest.param(
        manifest(priority="x"), (), ['spec.priority: "x" is not a whole number'], id="priority"
    ),
    pytest.param(
        manifest(guarantee={"resource": {"cpu": "-2"}}),
        (),
        ['spec.guarantee.resource[cpu]: "-2" is negative: write an amount of zero or more'],
        id="guarantee negative",
    ),
    pytest.param(
        manifest(
            affinity={"nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": "a"}}
        ),
        (),
        [
            'spec.affinity.nodeGroupAffinity.requiredDuringSchedulingIgnoredDuringExecution: "a" is not a list'
        ],
        id="affinity",
    ),
]


@pytest.mark.parametrize(("obj", "queues", "sentences"), REFUSED)
def test_a_queue_that_contradicts_itself_or_others_is_refused(
    obj: Any, queues: Any, sentences: list[str]
):
    assert denied(obj, *queues) == sentences


def test_a_guarantee_counts_as_deserved_with_a_warning():
    obj = manifest(guarantee={"resource": {"cpu": "16"}}, capability={"cpu": "64"})
    response = ask("/queues/validate", obj)
    assert response.problems == ()
    assert response.warnings == (
        "spec.deserved[cpu]: is not set; guarantee[cpu]=16 is used instead",
    )


def test_parts_of_devices_are_taken_with_a_warning():
    """Volcano accepts fractions of devices, but no pod can use the fraction."""
    obj = manifest(
        guarantee={"resource": {GPU: "0.5"}},
        deserved={GPU: "1.5", "cpu": "0.5"},
        capability={GPU: 2},
    )
    response = ask("/queues/validate", obj)
    assert response.problems == ()
    assert response.warnings == (
        f"spec.deserved[{GPU}]: 1.5 is not a whole number: pods get whole devices; write 1 or 2",
        f"spec.guarantee.resource[{GPU}]: 0.5 is not a whole number: pods get whole devices; write 1 or more",
    )


def test_children_with_parts_of_devices_fit_below_their_parent():
    parent = queue("p", deserved={GPU: "3"})
    first = queue("a", parent="p", deserved={GPU: "1.5"})
    assert denied(manifest("b", parent="p", deserved={GPU: "1.5"}), parent, first) == []


@pytest.mark.parametrize("name", ["default", "root"])
def test_the_builtin_queues_stay(name: str):
    assert denied(None, old=manifest(name)) == [
        f"{name} queue cannot be deleted: close it, or set its capability to 0"
    ]


def test_a_queue_with_children_stays():
    parts = [queue("dept"), *(queue(name, parent="dept") for name in "ba")]
    assert denied(None, *parts, old=manifest("dept")) == [
        "queue dept cannot be deleted because it has 2 child queues: a, b: delete those first"
    ]
    assert denied(None, *parts, old=manifest("a")) == []


def test_a_queue_whose_pods_hold_something_stays_if_an_administrator_says_so():
    busy = queue("q", pods=2)
    assert denied(None, busy, old=manifest()) == []
    settings = Settings(checks_allocated=True)
    assert denied(None, busy, old=manifest(), settings=settings) == [
        "queue q cannot be deleted because it has allocated Pods: 2: close the queue and wait until its pods end"
    ]


@pytest.mark.parametrize(
    ("name", "amounts"),
    [
        ("capability", {"cpu": "1"}),
        ("deserved", {"cpu": "1"}),
        ("guarantee", {"resource": {"cpu": "1"}}),
    ],
)
def test_the_root_keeps_what_it_has(name: str, amounts: Any):
    old, new = manifest("root"), manifest("root", **{name: amounts})
    sentence = (
        "root queue's resource attributes (capability, deserved, guarantee) cannot be modified: "
        f"spec.{name}; the root queue has the resources of the whole cluster"
    )
    assert denied(new, old=old) == [sentence]
    assert denied(new, old=old, settings=Settings(protects_root=False)) == []
    assert denied(manifest("root", weight=2), old=old) == []


def test_what_is_not_changed_is_not_looked_at():
    old = manifest(parent="gone", deserved={"cpu": 8}, capability={"cpu": 4})
    new = {**old, "metadata": {"name": "q", "finalizers": []}}
    assert denied(new, old=old) == []
    old, new = (manifest(parent="gone", weight=weight) for weight in (1, 2))
    assert denied(new, old=old) == []


def test_a_queue_that_closes_may_still_be_changed():
    old, new = (manifest(weight=weight, status={"state": "Closing"}) for weight in (1, 2))
    assert denied(new, old=old) == []


def test_the_capability_of_the_root_binds_nobody_and_missing_ones_neither():
    root = queue("root", capability={"cpu": "1"})
    free = queue("dept", capability={"memory": "1Gi"})
    assert denied(manifest(parent="root", capability={"cpu": "8"}), root) == []
    assert denied(manifest(parent="dept", capability={"cpu": "8"}), root, free) == []


def test_a_queue_may_not_go_below_itself():
    parts = [queue("a"), queue("b", parent="a"), queue("c", parent="b")]
    assert denied(manifest("a", parent="c"), *parts, old=manifest("a")) == [
        "queue a cannot use itself as parent: spec.parent: c is its descendant"
    ]


def test_a_branch_that_would_be_too_deep_is_not_moved():
    parts = [queue(b, parent=a) for a, b in zip("rabc", "abcd", strict=True)]
    below = [queue("q"), queue("z", parent="q")]
    assert denied(manifest(parent="d"), *parts, *below, old=manifest()) == [
        "queue q exceeds the maximum allowed depth of 5: spec.parent: its path would be a/b/c/d/q"
    ]


def test_denials_of_a_tree_rest_on_the_queues_that_they_name():
    response = ask("/queues/validate", manifest(parent="gone"))
    assert [(rest.kind.kind, rest.name) for rest in response.rests_on] == [("Queue", "gone")]


@pytest.mark.parametrize(
    ("obj", "spec"),
    [
        ({"metadata": {"name": "q"}}, {"reclaimable": True, "weight": 1, "parent": "root"}),
        (manifest(weight=0), {"reclaimable": True, "weight": 1, "parent": "root"}),
        (
            manifest(weight=3, reclaimable=False, parent="a"),
            {"reclaimable": False, "weight": 3, "parent": "a"},
        ),
        (manifest("root"), {"reclaimable": True, "weight": 1}),
    ],
)
def test_a_new_queue_is_filled_in(obj: Any, spec: Any):
    assert patched(obj, ask("/queues/mutate", obj))["spec"] == spec


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        (tree("eng/prod", "2/8"), tree("root/eng/prod", "1/2/8")),
        (tree("root/eng", "1/2"), tree("root/eng", "1/2")),
        (tree("a/b", "1/2"), tree("root/a/b", "1/1/2")),
    ],
)
def test_the_older_notation_of_trees_begins_at_the_root(given: Any, filled: Any):
    obj = manifest(annotations=given)
    assert patched(obj, ask("/queues/mutate", obj))["metadata"]["annotations"] == filled
    assert made("/queues/mutate", obj).problems == ()


def test_as_many_weights_as_the_path_has_parts_are_wanted_before_it_is_rooted():
    refused = made("/queues/mutate", manifest(annotations=tree("a/b", "1/2/3")))
    assert refused.problems == (
        f'metadata.annotations[volcano.sh/hierarchy]: Invalid value: "root/a/b": {LENGTH} 1/1/2/3',
    )


@pytest.mark.parametrize(
    ("was", "given", "filled"),
    [
        pytest.param(
            tree("root/a/b", "1/1/2"), tree("a/b", "1/2"), tree("root/a/b", "1/1/2"), id="applied"
        ),
        pytest.param(
            tree("root/a/b", "1/1/2"), tree("c/d", "3/4"), tree("root/c/d", "1/3/4"), id="moved"
        ),
        pytest.param(
            tree("root/a/b", "1/1/2"), tree("c/d", "1/1/2"), tree("root/c/d", "1/1/2"), id="path"
        ),
        pytest.param({}, tree("a/b", "1/2"), tree("root/a/b", "1/1/2"), id="added"),
        pytest.param(tree("a/b", "1/2"), tree("a/b", "1/2"), tree("a/b", "1/2"), id="untouched"),
        pytest.param(tree("root/a", "1/2"), {"x": "y"}, {"x": "y"}, id="removed"),
    ],
)
def test_a_hierarchy_that_is_applied_again_begins_at_the_root(was: Any, given: Any, filled: Any):
    """`kubectl apply` sends the annotations of the manifest again, in which the root is missing."""
    old, obj = manifest(annotations=was), manifest(annotations=given)
    answer = ask("/queues/mutate", obj, old=old)
    assert patched(obj, answer)["metadata"]["annotations"] == filled
    assert "spec" not in "".join(operation["path"] for operation in answer.patch)
