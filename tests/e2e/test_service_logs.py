"""The logs of the controllers at verbosity 4 have what docs/controllers.md states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.api import until
from tests.support.livejobs import LiveJob
from tests.support.vcjobs import job, task

if TYPE_CHECKING:
    from tests.support.live import Site

pytestmark = pytest.mark.e2e


def test_controllers_log_each_reconciled_object_and_each_write(site: Site) -> None:
    controllers = site.controllers("-v", "4", "--log-format", "json")
    live = LiveJob(site, job(task("w", 1), name="one"))
    until(lambda: live.owned("podgroups", "scheduling.volcano.sh/v1beta1"), "the PodGroup is there")

    def steps() -> list[str]:
        lines = [json.loads(line) for line in controllers.log.splitlines()]
        return [line["message"] for line in lines if line["level"] == "DEBUG"]

    until(lambda: any("effects" in step and "one" in step for step in steps()), "the job is logged")
    group = f"one-{live.uid}"
    until(lambda: any("create" in step and group in step for step in steps()), "the write is")
