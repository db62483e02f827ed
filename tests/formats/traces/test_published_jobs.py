"""The demand of a published job is split into tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optsched.formats.traces.published_jobs import equal_tasks
from optsched.units import CPU, GPU, MEMORY

DEMANDS = st.dictionaries(st.sampled_from([CPU, GPU, MEMORY]), st.integers(0, 40))


@given(number=st.integers(1, 12), demands=DEMANDS)
def test_requests_differ_by_one_unit_and_add_up_to_the_demand(
    number: int, demands: dict[str, int]
) -> None:
    parts = equal_tasks(number, demands)
    assert sum(part.number for part in parts) == number
    for resource, demand in demands.items():
        requests = [part.demands.get(resource, 0) for part in parts]
        total = sum(n * part.number for n, part in zip(requests, parts, strict=True))
        assert total == demand
        assert max(requests) - min(requests) <= 1
        assert requests == sorted(requests, reverse=True)


def test_many_equal_tasks_are_few_parts() -> None:
    parts = equal_tasks(150_000, {CPU: 150_001, GPU: 300_000})
    assert [(part.number, dict(part.demands)) for part in parts] == [
        (1, {CPU: 2, GPU: 2}),
        (149_999, {CPU: 1, GPU: 2}),
    ]
