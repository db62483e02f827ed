"""Tests of the set of controllers that run."""

from __future__ import annotations

import pytest

from optsched.controllers.job.reconcile import Options as JobOptions
from optsched.controllers.registry import Options, all_controllers, chosen
from tests.support.vcjobs import KEYS

EVERY = all_controllers(Options(JobOptions(lambda: KEYS)))


def names(text: str) -> set[str]:
    return {controller.name for controller in chosen(EVERY, text.split(","))}


ALL = {controller.name for controller in EVERY}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*", ALL),
        ("*,-sharding-controller", ALL),
        ("*,-queue", ALL - {"queue"}),
        ("*, -pg-controller", ALL - {"podgroup"}),
        ("queue", {"queue"}),
        ("queue-controller,pg-controller", {"queue", "podgroup"}),
    ],
)
def test_names_choose_controllers(text: str, expected: set[str]) -> None:
    assert names(text) == expected


def test_a_controller_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        ValueError, match=r"'quue' is not a controller: the controllers are .*, podgroup, queue"
    ):
        names("*,quue")


@pytest.mark.parametrize("text", ["", " ", ",", "-queue", "queue,-queue"])
def test_a_service_without_any_controller_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"no controller is selected: name some of .*, or \* for all"
    ):
        names(text)
