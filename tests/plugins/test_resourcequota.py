"""Namespaces admit only gangs that fit their quotas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.snapshot import Gang, GangPhase, Quota
from optsched.cluster.task import TaskStatus
from optsched.plugins.gangs.enqueueing import ResourceQuota
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.session.decompile import pending_of
from tests.support.engines import Bench
from tests.support.small import CPU, GPU, cluster, gang, node, shape

RULES = RuleSet.of(Priority(), ResourceQuota())
FOUR = Quota("ns/cpus", (("requests.cpu", 4000),))


def waits(name: str, cpu: int, number: int = 2, **fields: object) -> Gang:
    """Return a PodGroup without pods whose minResources request some CPUs."""
    fields = {"phase": GangPhase.PENDING, "min_resources": ((CPU, cpu * 1000),), **fields}
    return gang(name, least=number, **fields)


def bench(gangs: tuple[Gang, ...], *quotas: Quota) -> Bench:
    snapshot = cluster([node("n0", 64)], gangs)
    return Bench.of(replace(snapshot, quotas=quotas), RULES)


def enqueued(*gangs: Gang, quotas: tuple[Quota, ...] = (FOUR,)) -> list[str]:
    tried = bench(gangs, *quotas)
    let_in = tried.greedy(gated=True).enqueued
    return [g.name for g, yes in zip(tried.problem.snapshot.gangs, let_in, strict=True) if yes]


def test_what_is_let_in_counts_for_those_that_follow() -> None:
    assert enqueued(waits("a", 3), waits("b", 2), waits("c", 1)) == ["a", "c"]


@pytest.mark.parametrize(("used", "let_in"), [(1000, ["a"]), (1001, [])])
def test_what_is_in_use_counts(used: int, let_in: list[str]) -> None:
    assert (
        enqueued(waits("a", 3), quotas=(replace(FOUR, used=(("requests.cpu", used),)),)) == let_in
    )


@pytest.mark.parametrize(
    ("name", "hard"), [("requests.cpu", 4000), ("cpu", 4000), ("pods", 3), ("count/pods", 3)]
)
def test_pods_count_before_the_status_of_the_quota_does(name: str, hard: int) -> None:
    """Without this rule, a late quota status lets two gangs create half of their pods each."""
    made = gang("a", ("w", 2, shape(1)), phase=GangPhase.INQUEUE, min_resources=((CPU, 2000),))
    quota = Quota("ns/q", ((name, hard),))
    assert enqueued(made, waits("b", 3, 3), quotas=(quota,)) == []
    assert enqueued(made, waits("b", 1, 1), quotas=(quota,)) == ["b"]


def test_other_namespaces_and_other_resources_do_not_matter() -> None:
    elsewhere = Quota("other/cpus", (("cpu", 0),))
    gpus = Quota("ns/gpus", ((f"requests.{GPU}", 0), ("services", 0)))
    assert enqueued(waits("a", 3), quotas=(gpus, elsewhere)) == ["a"]


def test_every_quota_of_the_namespace_has_a_say() -> None:
    assert enqueued(waits("a", 3), quotas=(FOUR, Quota("ns/small", (("cpu", 1000),)))) == []


@pytest.mark.parametrize("name", ["pods", "count/pods"])
def test_pods_are_counted(name: str) -> None:
    few = Quota("ns/few", ((name, 3),))
    assert enqueued(waits("a", 1), waits("b", 1), waits("c", 1, 1), quotas=(few,)) == ["a", "c"]


@pytest.mark.parametrize("name", ["limits.cpu", "requests.memory", "count/pods"])
def test_what_only_quotas_count_is_counted(name: str) -> None:
    """`minResources` must list the resource, or a quota on limits admits half of a gang."""
    quota = Quota("ns/q", hard=((name, 5),))
    fits = waits("a", 1, min_usage=((name, 5),))
    assert enqueued(fits, quotas=(quota,)) == ["a"]
    too_much = waits("a", 1, min_usage=((name, 6),))
    assert enqueued(too_much, quotas=(quota,)) == []


@pytest.mark.parametrize("name", ["limits.cpu", "pods", "count/pods"])
def test_gangs_that_request_nothing_are_counted_too(name: str) -> None:
    """Some jobs have only limits, or no resources, so that only quotas count them."""
    quota = Quota("ns/q", hard=((name, 4),))
    first, second = (
        waits(each, 0, 3, min_resources=(), min_usage=((name, 3),)) for each in ("a", "b")
    )
    assert enqueued(first, second, quotas=(quota,)) == ["a"]


@pytest.mark.parametrize("name", ["cpu", "requests.cpu"])
def test_limits_are_requests_where_none_is_named(name: str) -> None:
    """The API server uses a container's limits as its requests if requests are missing."""
    quota = Quota("ns/q", hard=((name, 4000),))
    limits = (("limits.cpu", 3000),)
    assert enqueued(waits("a", 0, min_usage=limits), quotas=(quota,)) == ["a"]
    less = replace(quota, hard=((name, 2999),))
    assert enqueued(waits("a", 0, min_usage=limits), quotas=(less,)) == []
    assert enqueued(waits("a", 2, min_usage=limits), quotas=(less,)) == ["a"]


@pytest.mark.parametrize("name", ["cpu", "requests.cpu"])
def test_limits_of_some_tasks_are_requests_beside_those_of_others(name: str) -> None:
    mixed = waits("a", 1, min_usage=(("limits.cpu", 6000), ("requests.cpu", 7000)))
    assert enqueued(mixed, quotas=(Quota("ns/q", hard=((name, 7000),)),)) == ["a"]
    assert enqueued(mixed, quotas=(Quota("ns/q", hard=((name, 6999),)),)) == []


def test_gangs_that_were_let_in_before_still_bring_their_pods() -> None:
    assert enqueued(waits("a", 3, phase=GangPhase.INQUEUE), waits("b", 2), waits("c", 1)) == ["c"]


def test_pods_that_exist_have_been_counted_by_the_api_server() -> None:
    """Two of four pods exist and two have failed, so the others need half of minResources."""
    made = gang("a", ("w", 4, shape(1)), least=4, min_resources=((CPU, 4000),))
    ended = [replace(t, status=TaskStatus.FAILED) for t in made.tasks[:2]]
    half = replace(made, tasks=(*ended, *made.tasks[2:]), phase=GangPhase.PENDING)
    used = replace(FOUR, used=(("requests.cpu", 2000),))
    assert enqueued(half, quotas=(used,)) == ["a"]
    assert enqueued(half, waits("b", 1), quotas=(used,)) == ["a"]


@pytest.mark.parametrize(
    ("name", "whole"), [("requests.cpu", 4000), ("pods", 4), ("limits.cpu", 8)]
)
def test_succeeded_pods_bring_nothing_again(name: str, whole: int) -> None:
    """Two of four pods have succeeded, so the gang brings two pods, whether one exists or none."""
    usage = (("limits.cpu", 8),)
    made = gang("a", ("w", 4, shape(1)), min_resources=((CPU, 4000),), min_usage=usage)
    over = tuple(replace(t, status=TaskStatus.SUCCEEDED) for t in made.tasks)
    rest = replace(made, tasks=over[:2], phase=GangPhase.PENDING)
    assert enqueued(rest, quotas=(Quota("ns/q", ((name, whole // 2),)),)) == ["a"]
    assert enqueued(rest, quotas=(Quota("ns/q", ((name, whole // 2 - 1),)),)) == []
    last = replace(rest, tasks=(*over[:2], made.tasks[3]))
    used = ((name, whole // 4),)
    assert enqueued(last, quotas=(Quota("ns/q", ((name, whole // 2),), used=used),)) == ["a"]
    assert enqueued(last, quotas=(Quota("ns/q", ((name, whole // 2 - 1),), used=used),)) == []
    done = replace(rest, tasks=over)
    assert enqueued(done, quotas=(Quota("ns/q", ((name, 0),)),)) == ["a"]


def test_who_is_not_let_in_is_told_the_numbers() -> None:
    used = replace(FOUR, used=(("requests.cpu", 1000),))
    tried = bench((waits("a", 2), waits("b", 3)), used)
    reasons = pending_of(tried.problem, tried.greedy(gated=True), RULES)
    assert str(reasons["ns/b"]) == (
        "ResourceQuotaExceeded: the ResourceQuota ns/cpus allows 4 requests.cpu: 1 requests.cpu "
        "are in use, 2 requests.cpu are reserved by enqueued gangs, 3 requests.cpu are requested"
    )
