"""The index of host ports finds exactly the ports that conflict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.task import ANY_ADDRESS, HostPort
from optsched.problem.relations import PortIndex

PORTS = st.lists(
    st.builds(
        HostPort,
        st.sampled_from(["TCP", "UDP"]),
        st.sampled_from([ANY_ADDRESS, "10.0.0.1", "10.0.0.2"]),
        st.integers(80, 82),
    ),
    max_size=8,
)


@given(PORTS, PORTS)
def test_exactly_the_conflicting_ports_are_found(known: list[HostPort], ports: list[HostPort]):
    expected = [p for p, each in enumerate(known) if any(each.collides(port) for port in ports)]
    assert PortIndex(enumerate(known)).find_colliding(ports) == expected
