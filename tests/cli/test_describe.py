"""Tests of the descriptions of objects, and of readable times."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.cli.base.options import format_lines
from optsched.cli.base.table_columns import format_span
from optsched.cli.live.describe import event_rows, format_fields, split_words

S, M, H, D = 1000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5 * S, "0s"),
        (0, "0s"),
        (119 * S, "119s"),
        (2 * M, "2m"),
        (9 * M + 59 * S, "9m59s"),
        (10 * M + 59 * S, "10m"),
        (3 * H, "3h"),
        (7 * H + 59 * M, "7h59m"),
        (8 * H + 59 * M, "8h"),
        (47 * H, "47h"),
        (48 * H, "2d"),
        (7 * D + 23 * H, "7d23h"),
        (8 * D + 23 * H, "8d"),
        (2 * 365 * D, "2y"),
        (7 * 365 * D + 364 * D, "7y364d"),
        (9 * 365 * D, "9y"),
    ],
)
def test_times_are_said_as_kubernetes_does(ms: int, text: str) -> None:
    assert format_span(ms) == text


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("minAvailable", "Min Available"),
        ("ttlSecondsAfterFinished", "Ttl Seconds After Finished"),
        ("uid", "UID"),
        ("apiVersion", "API Version"),
        ("clusterIP", "Cluster IP"),
        ("name", "Name"),
        ("volcano.sh/job-name", "volcano.sh/job-name"),
    ],
)
def test_fields_are_said_in_words(key: str, words: str) -> None:
    assert split_words(key) == words


def test_names_of_users_stay_as_they_are_and_lists_begin_with_names() -> None:
    tasks = [{"replicas": 2, "name": "a"}, {"name": "b", "args": ["x", "y\nz"]}]
    value: dict[str, Any] = {
        "labels": {"teamName": "b"},
        "isTrue": True,
        "none": None,
        "empty": [],
        "tasks": tasks,
    }
    assert list(format_fields(value)) == [
        "Labels:",
        "  teamName:  b",
        "Is True:  true",
        "None:     <none>",
        "Empty:    <none>",
        "Tasks:",
        "  - Name:      a",
        "    Replicas:  2",
        "  - Name:  b",
        "    Args:",
        "      x",
        "      y",
        "      z",
    ]


def test_events_of_both_apis_have_their_times() -> None:
    created = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    old = {
        "metadata": created,
        "type": "Warning",
        "reason": "Late",
        "message": "x",
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:01:00Z",
        "count": 4,
        "source": {"component": "volcano", "host": "n1"},
    }
    new = {
        "metadata": created,
        "reason": "Early",
        "eventTime": "2026-01-01T00:00:30.000000Z",
        "reportingComponent": "optsched",
    }
    now_ms = 1_767_225_600_000 + 90 * S
    assert event_rows([old, new], now_ms) == [
        ["<none>", "Early", "60s", "optsched", "<none>"],
        ["Warning", "Late", "30s (x4 over 90s)", "volcano, n1", "x"],
    ]


def test_states_have_colours_and_nothing_else() -> None:
    _, line = format_lines(["Name", "Phase"], [["Running", "Failed"]])
    assert line.plain == "Running   Failed"
    assert [
        (format_span.start, format_span.end, format_span.style) for format_span in line.spans
    ] == [(10, 16, "red")]
