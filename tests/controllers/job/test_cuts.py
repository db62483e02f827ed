"""A controller may stop at any point: cut and uncut runs of random jobs reach the same end state.

Each run is played twice: once without cuts, and once with a controller that stops. The strategy
draws the number of its stops and of the effects before each stop.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.api.job import JobAction
from optsched.api.kinds import COMMAND, JOB, POD, POD_GROUP
from optsched.controllers.effects import Again, Create, Delete, Effect, Emit, Then
from tests.support.effort import num_examples
from tests.support.vcjobs import Play, job, policy, task

if TYPE_CHECKING:
    from collections.abc import Iterator

ACTIONS = tuple(action.value for action in JobAction)
EVENTS = ("PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "Unknown", "JobUpdated", "*")
PARTS = {"totalPartitions": 2, "partitionSize": 1}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
COMMANDS = ("AbortJob", "ResumeJob", "RestartJob", "CompleteJob", "TerminateJob")

policies = st.lists(
    st.builds(policy, st.sampled_from(EVENTS), st.sampled_from(ACTIONS)), max_size=2
)
jobs = st.builds(
    lambda first, second, mine, minimum, plugins: job(
        task("a", 2, policies=mine, maxRetry=1, partitionPolicy=PARTS),
        task("b", 1),
        policies=[*first, *second],
        minAvailable=minimum,
        plugins=plugins,
        maxRetry=2,
    ),
    policies,
    policies,
    policies,
    st.integers(1, 3),
    st.sampled_from([{}, {"svc": [], "ssh": []}]),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("run", "succeed", "fail", "delete", "vanish", "evict", "drain", "gone"),
                *("command", "grow", "again", "break"),
            ]
        ),
        st.integers(0, 10),
    ),
    max_size=8,
)


class Cut(Play):
    """A play whose controller stops repeatedly.

    `cuts` are bit masks, one per decision, of the effects that are executed. The effects of one
    decision run concurrently, so that any of them may be lost. After the last cut the controller
    works to the end.
    """

    def __init__(self, manifest: dict[str, Any], cuts: list[int]) -> None:
        self.cuts = list(cuts)
        super().__init__(manifest)

    def settle(self, rounds: int = 60) -> None:
        for _ in range(rounds):
            before = len(self.world.writes), len(self.cuts)
            bits = self.cuts.pop() if self.cuts else -1
            self.world.apply(_kept(self.decide(), bits))
            self._note()
            self._let_in()
            if (len(self.world.writes), len(self.cuts)) == before:
                return
        raise AssertionError("it never comes to rest")


def _kept(effects: tuple[Effect, ...], bits: int) -> Iterator[Effect]:
    """Yield the effects that the bits keep; of an ordered group, yield the first ones."""
    for effect in effects:
        if not isinstance(effect, Then):
            keeps, bits = bits & 1, bits >> 1
            if keeps:
                yield effect
            continue
        for step in effect.steps:
            keeps, bits = bits & 1, bits >> 1
            if not keeps:
                break
            yield step


def act(play: Play, what: str, number: int) -> None:
    """Let one event happen to a job, or to one of the pods to which it can happen."""
    running, pods = sorted(play.pods_that("Running")), play.pods
    pick = [pods[number % len(pods)]] if pods else []
    match what:
        case "run" | "gone":
            getattr(play, what)()
        case "succeed" | "fail" if running:
            getattr(play, what)(running[number % len(running)])
        case "delete" | "vanish" if pick:
            getattr(play, what)(*pick)
        case "evict" if pick and play.group is not None:
            play.evict(*pick)
            play.settle()
        case "drain" if pick:
            play.world.phase(play.full(pick[0]), "Running", conditions=[DISRUPTED])
            play.delete(*pick)
        case "again" if running:
            status = [{"name": "main", "ready": True, "restartCount": 1}]
            name = play.full(running[number % len(running)])
            play.world.phase(name, "Running", containerStatuses=status)
            play.settle()
        case "break" if play.group is not None:
            play.group_is("Unknown")
        case "command":
            play.command(COMMANDS[number % len(COMMANDS)])
        case "grow":
            play.edit(
                tasks=[
                    {**play.manifest["spec"]["tasks"][0], "replicas": 1 + number % 3},
                    play.manifest["spec"]["tasks"][1],
                ]
            )


def end_of(play: Play) -> dict[str, Any]:
    """Return the parts of the end state that must be equal."""
    status = copy.deepcopy(play.status)
    status.pop("lastCommand", None)
    pods = {
        pod["metadata"]["name"]: (pod["metadata"]["annotations"], pod["status"]["phase"])
        for pod in play.world.listed(POD)
    }
    group = play.group
    return {
        "status": status,
        "pods": pods,
        "group": group and group["spec"],
        "commands": len(play.world.listed(COMMAND)),
    }


@settings(max_examples=num_examples(150), deadline=None)
@given(jobs, steps, st.lists(st.integers(0, 4095), max_size=30))
def test_a_controller_may_stop_anywhere(
    manifest: dict[str, Any], life: list[tuple[str, int]], cuts: list[int]
) -> None:
    whole, cut = Cut(copy.deepcopy(manifest), []), Cut(copy.deepcopy(manifest), cuts)
    for what, number in life:
        act(whole, what, number)
        act(cut, what, number)
        assert end_of(cut) == end_of(whole)
    for play in (whole, cut):
        play.gone()
    assert end_of(cut) == end_of(whole)


@settings(max_examples=num_examples(150), deadline=None)
@given(jobs, steps)
def test_what_is_done_is_not_asked_for_again(
    manifest: dict[str, Any], life: list[tuple[str, int]]
) -> None:
    play = Play(copy.deepcopy(manifest))
    for what, number in life:
        act(play, what, number)
        assert all(isinstance(effect, Again) for effect in play.decide())
        assert not play.world.refused
    created = [w for w in play.world.writes if isinstance(w, Create) and w.kind == POD_GROUP]
    dropped = [w for w in play.world.writes if isinstance(w, Delete) and w.kind == POD_GROUP]
    assert len(created) - len(dropped) in (0, 1)


@settings(max_examples=num_examples(100), deadline=None)
@given(jobs, steps)
def test_a_job_keeps_within_its_bounds(
    manifest: dict[str, Any], life: list[tuple[str, int]]
) -> None:
    play = Play(copy.deepcopy(manifest))
    for what, number in life:
        act(play, what, number)
        status = play.status
        assert status["retryCount"] <= 2
        spec = play.manifest["spec"]
        assert len(play.pods) <= sum(one["replicas"] for one in spec["tasks"])
        names = [each["status"] for each in status["conditions"]]
        assert len(names) == len(set(names))
        assert names[-1] == play.phase
    events = [(e.reason, e.message) for e in play.world.events if isinstance(e, Emit)]
    assert len([w for w in play.world.writes if getattr(w, "kind", None) == JOB]) < 80
    assert all(message for _, message in events)
