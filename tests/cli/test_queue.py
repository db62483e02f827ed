"""Tests of the requests, output and exit codes of `optsched queue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched.api.kinds import COMMAND, QUEUE, Ref
from optsched.cli.base.table_columns import name_of, order_as_tree
from optsched.cli.live.queue_commands import why_not_deleted
from optsched.kube.client.errors import Forbidden, Rejected, Unreachable
from tests.cli.clusters import CONTEXT, FakeCluster, answer, optsched, queue, values

if TYPE_CHECKING:
    from click.testing import Result

WEBHOOK = 'admission webhook "validatequeue.volcano.sh"'
HEADINGS = "Name Weight State Parent Inqueue Pending Running Unknown Completed"
COUNTS = {"inqueue": 1, "pending": 2, "running": 3, "unknown": 4, "completed": 5}
FULL = queue(
    "ml",
    "root",
    weight=4,
    capability={"nvidia.com/gpu": "8", "cpu": "32"},
    guarantee={"resource": {"cpu": "2"}},
    status={"state": "Closing", **COUNTS, "allocated": {"cpu": "4"}},
)


def lines(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


def test_the_columns_are_those_of_vcctl(cluster: FakeCluster) -> None:
    cluster.put(FULL)
    headings, row = lines(optsched("queue", "list"))
    assert " ".join(headings) == HEADINGS
    assert row == ["ml", "4", "Closing", "root", "1", "2", "3", "4", "5"]
    assert lines(optsched("queue", "get", "-n", "ml")) == [headings, row]
    assert lines(optsched("queue", "get", "ml")) == [headings, row]


def test_wide_shows_amounts(cluster: FakeCluster) -> None:
    cluster.put(FULL)
    headings, row = lines(optsched("queue", "list", "-o", "wide"))
    seen = dict(zip(headings, row, strict=True))
    assert seen["Capability"] == "cpu=32,nvidia.com/gpu=8"
    assert seen["Allocated"] == "cpu=4"
    assert seen["Guarantee"] == "cpu=2"
    assert seen["Deserved"] == "<none>"
    assert seen["Reclaimable"] == "true"


def test_colours_are_for_terminals(cluster: FakeCluster) -> None:
    cluster.put(queue("q"))
    assert "\x1b" not in optsched("queue", "list").stdout
    assert "\x1b[32mOpen\x1b[0m" in optsched("queue", "list", env={"FORCE_COLOR": "1"}).stdout
    plain = optsched("queue", "list", env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout
    assert "\x1b[32m" not in plain
    assert "\x1b" not in optsched("queue", "list", "-o", "json", env={"FORCE_COLOR": "1"}).stdout


def test_a_tree_stands_below_its_root(cluster: FakeCluster) -> None:
    for obj in (queue("b2", "b"), queue("b1", "b"), queue("b", "root"), queue("root"), queue("a")):
        cluster.put(obj)
    result = optsched("queue", "list", "--tree")
    names = [line.partition("   1 ")[0].rstrip() for line in result.stdout.splitlines()[1:]]
    assert names == ["root", "├─ a", "└─ b", "   ├─ b1", "   └─ b2"]


def test_queues_whose_parents_are_lost_or_form_a_circle_are_shown(cluster: FakeCluster) -> None:
    for obj in (queue("x", "y"), queue("y", "x"), queue("lost", "gone"), queue("below", "lost")):
        cluster.put(obj)
    result = optsched("queue", "list", "--tree")
    assert [line.split()[-9] for line in result.stdout.splitlines()[1:]] == [
        *("lost", "below", "x", "y")
    ]


NAMES = st.sampled_from("abcdefg")


@given(st.dictionaries(NAMES, NAMES | st.sampled_from(["", "root", "gone"])), st.booleans())
def test_every_queue_is_in_the_tree_once(parents: dict[str, str], has_root: bool) -> None:
    queues = [queue(name, parent) for name, parent in parents.items()]
    if has_root:
        queues.append(queue("root"))
    names = [name_of(obj) for obj, _ in order_as_tree(queues)]
    assert sorted(names) == sorted([*parents, *(["root"] if has_root else [])])
    for name, parent in parents.items():
        if parent in parents and _leads_up(name, parents):
            assert names.index(parent) < names.index(name)


def _leads_up(name: str, parents: dict[str, str]) -> bool:
    """Return whether the chain of parents of a queue ends, instead of entering a cycle."""
    seen: set[str] = set()
    while name in parents and name not in seen:
        seen.add(name)
        name = parents[name]
    return name not in seen


def test_without_queues_a_table_is_empty_and_says_so(cluster: FakeCluster) -> None:
    for arguments in ((), ("--tree",)):
        result = optsched("queue", "list", *arguments)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "No resources found\n"
    assert answer(optsched("queue", "list", "-o", "json"))["items"] == []
    assert {place for place in cluster.places} == {("", "")}


def test_programs_get_what_is_stored(cluster: FakeCluster) -> None:
    cluster.put({**FULL, "metadata": {"name": "ml", "managedFields": [{"manager": "x"}]}})
    whole = answer(optsched("queue", "list", "-o", "json"))
    assert (whole["apiVersion"], whole["kind"]) == ("v1", "List")
    (item,) = whole["items"]
    assert (item["apiVersion"], item["kind"]) == (QUEUE.api_version, "Queue")
    assert "managedFields" not in item["metadata"]
    assert item["status"] == FULL["status"]
    assert values(optsched("queue", "get", "ml", "-o", "yaml").stdout) == [item]
    assert optsched("queue", "list", "-o", "name").stdout == "queue.scheduling.volcano.sh/ml\n"


def test_create_says_all_that_a_queue_may_have(cluster: FakeCluster) -> None:
    flags = ["--capability", "cpu=4,nvidia.com/gpu=8", "--deserved", "cpu=2"]
    more = ["--guarantee", "cpu=1", "--parent", "root", "--priority", 3, "--no-reclaimable"]
    result = optsched("queue", "create", "my-queue", "-w", 2, *flags, *more)
    assert (result.exit_code, result.stdout) == (0, "create queue my-queue successfully\n")
    assert cluster.one(QUEUE)["spec"] == {
        "weight": 2,
        "parent": "root",
        "priority": 3,
        "reclaimable": False,
        "capability": {"cpu": "4", "nvidia.com/gpu": "8"},
        "deserved": {"cpu": "2"},
        "guarantee": {"resource": {"cpu": "1"}},
    }


def test_create_as_the_guides_write_it(cluster: FakeCluster) -> None:
    result = optsched("queue", "create", "-n", "my-queue", "-w", "2", "-o", "json")
    assert answer(result)["spec"] == {"weight": 2}
    assert optsched("queue", "create", "-n", "other").exit_code == 0
    assert cluster.objects[Ref(QUEUE, "", "other")]["spec"] == {"weight": 1}


def test_create_closed_asks_for_it(cluster: FakeCluster) -> None:
    assert optsched("queue", "create", "q", "-S", "closed").exit_code == 0
    assert cluster.one(COMMAND)["action"] == "CloseQueue"


def test_create_twice_is_a_conflict(cluster: FakeCluster) -> None:
    cluster.put(queue("q"))
    result = optsched("queue", "create", "q")
    assert (result.exit_code, result.stderr) == (4, "Error: queue q exists already\n")


def test_a_name_that_is_not_valid_is_refused_with_the_rule(cluster: FakeCluster) -> None:
    message = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters"
    causes = (("metadata.name", f'Invalid value: "ML2": {message}'),)
    cluster.refuse("create", Rejected(422, "Invalid", "ML2 is invalid", causes=causes))
    result = optsched("queue", "create", "ML2")
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: queue ML2 was not created: the name is not valid; use at most 253 lower-case "
        "letters, digits, '-' and '.', with a letter or digit at both ends\n",
    )


def test_warnings_of_the_server_are_shown_beside_the_output(cluster: FakeCluster) -> None:
    cluster.warnings = ["spec.deserved is missing: it counts as the guarantee"]
    result = optsched("queue", "create", "q")
    assert result.stdout == "create queue q successfully\n"
    assert result.stderr == "Warning: spec.deserved is missing: it counts as the guarantee\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("create",), "a name is missing: write the queue's name after the command, or after -N"),
        (("create", "a", "-n", "b"), "two names are given: a and b"),
        (("create", "a", "-w", "0"), "0 is not in the range 1<=x<=65535"),
        (("create", "a", "--capability", "cpu"), "'cpu' is not an amount of a resource: write"),
        (("create", "a", "--capability", "cpu=1,cpu=2"), "cpu is given more than once"),
        (("create", "a", "--deserved", "cpu=1x"), 'cpu: "1x" is not a quantity'),
        (
            ("create", "a", "--deserved", "nvidia.com/gpu=1.5"),
            "nvidia.com/gpu: 1.5 is not a whole number: pods get whole devices; write 1 or 2",
        ),
        (
            ("operate", "a", "-a", "update", "--guarantee", "nvidia.com/gpu=500m"),
            "nvidia.com/gpu: 500m is not a whole number: pods get whole devices; write 1 or more",
        ),
        (
            ("create", "a", "--capability", "cpus=1"),
            "'cpus' is not a resource of pods: write cpu",
        ),
        (("create", "a", "--capability", "gpu=1"), "did you mean nvidia.com/gpu?"),
        (("operate", "a"), "the option -a / --action is missing: write one of open, close, update"),
        (("operate", "a", "-a", "drain"), "'drain' is not one of 'open', 'close', 'update'"),
        (("operate", "a", "-a", "update"), "nothing to update: give --weight"),
        (("operate", "a", "-a", "close", "-w", "2"), "--weight is valid only with --action update"),
        (("get",), "a name is missing"),
    ],
)
def test_wrong_usage_ends_with_2(
    cluster: FakeCluster, arguments: tuple[str, ...], sentence: str
) -> None:
    cluster.put(queue("a"))
    result = optsched("queue", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert cluster.writes == []


@pytest.mark.parametrize(("word", "action"), [("open", "OpenQueue"), ("close", "CloseQueue")])
def test_operate_asks_by_a_command(cluster: FakeCluster, word: str, action: str) -> None:
    cluster.put(queue("q", status={"state": "Open" if word == "close" else "Closed"}))
    result = optsched("queue", "operate", "-n", "q", "-a", word)
    assert (result.exit_code, result.stdout) == (0, f"{word} queue q successfully\n")
    made = cluster.one(COMMAND)
    assert made["metadata"]["namespace"] == CONTEXT
    assert made["metadata"]["name"].startswith(f"q-{action.lower()}-")
    assert made["action"] == action
    target = {"apiVersion": QUEUE.api_version, "kind": "Queue", "name": "q", "uid": "uid-q"}
    assert made["target"] == {**target, "controller": True, "blockOwnerDeletion": True}
    assert made["metadata"]["ownerReferences"] == [made["target"]]


def closed(name: str, parent: str = "", *, by_parent: bool = False) -> Any:
    found = queue(name, parent, status={"state": "Closed"})
    if by_parent:
        found["metadata"]["annotations"] = {"volcano.sh/closed-by-parent": "true"}
    return found


@pytest.mark.parametrize(
    ("objs", "name", "action", "sentence"),
    [
        (
            [queue("root", status={"state": "Open"})],
            "root",
            "close",
            "queue root cannot be closed: every other queue is below it",
        ),
        (
            [closed("dept"), closed("team", "dept", by_parent=True)],
            "team",
            "open",
            "queue team stays closed while its parent dept is closed: open dept first",
        ),
    ],
)
def test_operate_refuses_what_would_have_no_effect(
    cluster: FakeCluster, objs: Any, name: str, action: str, sentence: str
) -> None:
    for obj in objs:
        cluster.put(obj)
    result = optsched("queue", "operate", name, "-a", action)
    assert (result.exit_code, result.stderr) == (4, f"Error: {sentence}\n")
    assert cluster.writes == []


@pytest.mark.parametrize(
    ("obj", "action", "said"),
    [
        (queue("q", status={"state": "Open"}), "open", "queue q is Open already\n"),
        (closed("q"), "close", "queue q is Closed already\n"),
        (closed("q", by_parent=True), "close", "close queue q successfully\n"),
    ],
)
def test_operate_says_that_nothing_is_to_be_done(
    cluster: FakeCluster, obj: Any, action: str, said: str
) -> None:
    cluster.put(obj)
    result = optsched("queue", "operate", "q", "-a", action)
    assert (result.exit_code, result.stdout) == (0, said)
    assert bool(cluster.writes) is ("already" not in said)


@pytest.mark.parametrize(
    ("flags", "is_written"),
    [
        (("-w", "5"), False),
        (("--capability", "cpu=1000m,memory=2048Mi"), False),
        (("--guarantee", "cpu=2", "--reclaimable", "--parent", "root"), False),
        (("-w", "6"), True),
        (("--capability", "cpu=2"), True),
        (("--capability", "nvidia.com/gpu=1"), True),
        (("--guarantee", "memory=1"), True),
        (("--deserved", "cpu=1"), True),
        (("--no-reclaimable",), True),
    ],
)
def test_operate_says_that_no_value_differs(
    cluster: FakeCluster, flags: tuple[str, ...], is_written: bool
) -> None:
    fields = {"capability": {"cpu": "1", "memory": "2Gi"}, "guarantee": {"resource": {"cpu": "2"}}}
    cluster.put(queue("q", "root", weight=5, reclaimable=True, **fields))
    result = optsched("queue", "operate", "q", "-a", "update", *flags)
    said = "update queue q successfully" if is_written else "queue q already has these values"
    assert (result.exit_code, result.stdout) == (0, f"{said}\n")
    assert bool(cluster.writes) is is_written


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("-w", "2"), "weight"),
        (("--priority", "2"), "priority"),
        (("--parent", "q"), "parent"),
        (("--no-reclaimable",), "field reclaimable"),
        (("--capability", "cpu=1", "-w", "2"), "weight"),
    ],
)
def test_fields_of_the_root_without_effect_are_refused(
    cluster: FakeCluster, flags: tuple[str, ...], field: str
) -> None:
    cluster.put(queue("root"))
    result = optsched("queue", "operate", "root", "-a", "update", *flags)
    assert (result.exit_code, cluster.writes) == (4, [])
    assert result.stderr.startswith(f"Error: the {field} of queue root has no effect: ")


def test_operate_changes_what_is_said(cluster: FakeCluster) -> None:
    cluster.put(queue("q", capability={"cpu": "1", "memory": "2Gi"}))
    flags = ("-w", "5", "--capability", "cpu=4")
    assert optsched("queue", "operate", "-n", "q", "-a", "update", *flags).exit_code == 0
    spec = cluster.one(QUEUE)["spec"]
    assert spec == {"weight": 5, "capability": {"cpu": "4", "memory": "2Gi"}}


@pytest.mark.parametrize(
    ("obj", "others", "why"),
    [
        (queue("default"), [], "every cluster needs this queue"),
        (queue("root"), [], "every cluster needs this queue"),
        (queue("q"), [queue("b", "q"), queue("a", "q")], "its child queues are a, b"),
        (queue("q", status={"allocated": {"cpu": "4", "pods": "2"}}), [], "its pods hold cpu=4,"),
        (queue("q", status={"allocated": {"cpu": "0", "pods": "0"}}), [queue("a")], ""),
        (queue("q", status={"state": "Open"}), [queue("a", "root")], ""),
    ],
)
def test_a_queue_stays_as_long_as_it_is_needed(
    obj: dict[str, Any], others: list[dict[str, Any]], why: str
) -> None:
    assert why_not_deleted(obj, [obj, *others]).startswith(why)
    assert bool(why_not_deleted(obj, [obj, *others])) == bool(why)


def test_delete_takes_an_open_queue_away_and_no_other(cluster: FakeCluster) -> None:
    cluster.put(queue("q"))
    cluster.put(queue("below", "stays"))
    cluster.put(queue("stays"))
    refused = optsched("queue", "delete", "-n", "stays")
    assert refused.exit_code == 4
    assert refused.stderr == "Error: queue stays is not deleted: its child queues are below\n"
    result = optsched("queue", "delete", "-n", "q")
    assert (result.exit_code, result.stdout) == (0, "delete queue q successfully\n")
    assert {ref.name for ref in cluster.objects} == {"below", "stays"}
    assert optsched("queue", "delete", "q").exit_code == 3


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (Forbidden(403, "Forbidden", "queues is forbidden"), 5, "403 Forbidden: queues is"),
        (Forbidden(403, "Forbidden", f"{WEBHOOK} denied the request: no"), 1, "403 Forbidden: adm"),
        (Unreachable("GET /: refused"), 6, "the cluster cannot be reached: GET /: refused"),
    ],
)
def test_what_a_cluster_refuses_has_its_code(
    cluster: FakeCluster, error: Exception, code: int, sentence: str
) -> None:
    cluster.refuse("list", error)  # type: ignore[arg-type]
    result = optsched("queue", "list")
    assert result.exit_code == code
    assert result.stderr.startswith(f"Error: {sentence}")


def test_a_cluster_without_the_kind_says_what_is_missing(cluster: FakeCluster) -> None:
    cluster.absent.add(QUEUE)
    for arguments in (("list",), ("get", "q"), ("create", "q")):
        result = optsched("queue", *arguments)
        assert result.exit_code == 3
        assert "the cluster has no queues.scheduling.volcano.sh" in result.stderr


def test_how_to_reach_the_cluster_is_passed_on(cluster: FakeCluster) -> None:
    optsched("queue", "list", "-k", "here.conf", "-s", "https://there")
    optsched("queue", "list", "--kubeconfig", "here.conf", "--master", "https://there")
    assert cluster.places == [("here.conf", "https://there")] * 2


def test_amounts_may_have_spaces(cluster: FakeCluster) -> None:
    result = optsched("queue", "create", "a", "--capability", "cpu=1, memory = 1Gi")
    assert result.exit_code == 0, result.output
    (made,) = [obj for ref, obj in cluster.objects.items() if ref.name == "a"]
    assert made["spec"]["capability"] == {"cpu": "1", "memory": "1Gi"}
