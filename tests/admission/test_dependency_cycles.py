from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from optsched.admission.job_rules import find_cycle

NAMES = st.sampled_from("abcdef")
GRAPHS = st.dictionaries(NAMES, st.lists(NAMES, max_size=4), max_size=6)


def reaches(graph: dict[str, list[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph.get(start, ()))
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph.get(name, ())
    return seen


@given(GRAPHS)
def test_a_circle_is_found_exactly_where_there_is_one(graph: dict[str, list[str]]):
    cycle = find_cycle(graph)
    assert bool(cycle) == any(name in reaches(graph, name) for name in graph)
    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(b in graph[a] for a, b in pairwise(cycle))
