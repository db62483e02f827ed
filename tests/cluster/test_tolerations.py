"""The index of tolerations agrees with the tolerations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.selectors import Taint, TaintEffect, Toleration, TolerationIndex

EFFECTS = st.sampled_from(list(TaintEffect))
TAINTS = st.builds(Taint, st.sampled_from("ab"), st.sampled_from(["", "x", "y"]), EFFECTS)
TOLERATIONS = st.builds(
    Toleration,
    st.sampled_from(["", "a", "b"]),
    st.booleans(),
    st.sampled_from(["", "x", "y"]),
    st.none() | EFFECTS,
)


@given(st.lists(TOLERATIONS, max_size=4), TAINTS)
def test_the_index_of_tolerations_agrees_with_the_tolerations(
    tolerations: list[Toleration], taint: Taint
) -> None:
    expected = any(toleration.tolerates(taint) for toleration in tolerations)
    assert TolerationIndex(tolerations).tolerates(taint) is expected
