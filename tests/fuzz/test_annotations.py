"""Malformed annotations of any object stop neither the decoder nor the session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optsched.api import wellknown
from optsched.controllers.ufm import UfmError, read_links
from optsched.formats.codec import annotations as marks
from optsched.formats.codec.queues import USAGE
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode
from optsched.formats.traces.cluster_logs import read_philly
from optsched.plugins.scores import packing as strategy_fit
from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from tests.formats.objects import group, node, pod, queue
from tests.fuzz.parsers import NODE, POD
from tests.plugins.test_device_claims import GROUP

KEYS = sorted(
    {
        value
        for module in (wellknown, marks, strategy_fit)
        for value in vars(module).values()
        if isinstance(value, str) and "/" in value
    }
    | {USAGE, *NODE["metadata"]["annotations"], *POD["metadata"]["annotations"]}  # type: ignore[index]
)
TEXTS = {
    "deep": "[" * 100_000,
    "digits": "9" * 5000,
    "whole": '{"a": ' + "9" * 400 + "}",
    "numbers": f"[{'9' * 400}, -1e308]",
    "cut": '{"pod": ',
    "nothing": "null",
    "signs": "\x00\x1b[2J,;:=\ud800",
    "long": "a,b:c;" * 20_000,
}


def with_annotations(obj: dict[str, Any], text: str) -> dict[str, Any]:
    kept = obj["metadata"].get("annotations", {})
    foreign = {key: text for key in KEYS if key != GROUP}
    meta = {
        **obj["metadata"],
        "annotations": {**foreign, **{k: kept[k] for k in kept if k == GROUP}},
    }
    return {**obj, "metadata": meta}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_annotation_stops_a_session(text: str) -> None:
    member = pod("member", annotations={GROUP: "g"})
    running = pod("running", nodeName="n1")
    plain = [node("n2"), pod("plain")]
    objects = [node("n1"), member, running, group("g", {"minMember": 1}), queue("q"), NODE, POD]
    poisoned = [with_annotations(each, text) for each in objects]
    snapshot = assemble([*plain, *poisoned]).snapshot
    policy = load_policy("volcano-default", Path.read_text)
    report = run_session(snapshot, policy, SessionContext())
    assert report.trace.violations == ()
    assert "ns/plain" in report.plan.binds
    assert list(encode(snapshot))


def test_answers_that_go_too_deep_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UfmError, match="is not JSON"):
        read_links(b"[" * 100_000)
    (tmp_path / "log").write_text("[" * 100_000)
    with pytest.raises(Exception, match="this job log cannot be read"):
        read_philly(tmp_path / "log", ())
