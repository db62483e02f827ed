import socket

import pytest

from optsched.local import processes
from optsched.local.processes import LASTING, choose_ports

NAMES = ("a", "b", "c")


def test_ports_are_kept_if_they_can_be() -> None:
    first = choose_ports(NAMES, {})
    assert len(set(first.values())) == len(NAMES)
    assert choose_ports(NAMES, first) == first
    with socket.create_server(("127.0.0.1", first["a"])):
        second = choose_ports(NAMES, first)
    assert second["a"] != first["a"]
    assert {**second, "a": 0} == {**first, "a": 0}


def test_nobody_gets_them_who_asks_for_any_port() -> None:
    assert set(choose_ports(NAMES, {}).values()) <= set(LASTING)
    with socket.create_server(("127.0.0.1", 0)) as given:
        assert given.getsockname()[1] not in LASTING


def test_none_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "LASTING", range(port, port + 1))
        monkeypatch.setattr(processes, "MAX_TRIES", 1)
        with pytest.raises(OSError, match=r"no free port on 127.0.0.1: tried 1 of range"):
            choose_ports(NAMES, {})
