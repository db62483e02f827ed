"""Caches of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.cluster.bounded_cache import Interned, RecentCache, SharedObjects
from optsched.cluster.task import TaskShape
from optsched.formats.codec.pods import reader
from optsched.formats.codec.pods.reader import PodDecoder
from tests.formats.objects import pod
from tests.support.sizes import container_sizes

if TYPE_CHECKING:
    import pytest


def test_what_is_not_asked_for_is_forgotten() -> None:
    recent: RecentCache[int, int] = RecentCache(2)
    for number in range(10):
        recent.add(number, number)
        assert recent.get(0) == 0
    assert recent.get(9) == 9
    assert [number for number in range(1, 6) if recent.get(number) is not None] == []


def test_as_many_are_kept_as_are_in_use() -> None:
    used = 10
    recent: RecentCache[int, int] = RecentCache(2, lambda: used)
    for number in range(10):
        recent.add(number, number)
    assert [number for number in range(10) if recent.get(number) is None] == []
    used = 0
    for number in range(10, 20):
        recent.add(number, number)
    assert [number for number in range(16) if recent.get(number) is not None] == []


def shape(cpu: int) -> TaskShape:
    return TaskShape((("cpu", cpu),))


def test_equal_values_are_one_as_long_as_any_is_held() -> None:
    interned: Interned[TaskShape] = Interned()
    held = [interned.intern(shape(cpu)) for cpu in (1, 2)]
    assert interned.intern(shape(1)) is held[0]
    assert interned.intern(shape(2)) is held[1]
    assert len(interned) == 2
    del held[1]
    assert len(interned) == 1


def asking(cpu: int) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}]
    return pod("p", {"containers": containers})


def test_a_decoder_keeps_the_shape_of_a_standing_pod_and_few_others() -> None:
    """A pod equal to a running one always shares its shape, however many other pods come and go."""
    decoder = PodDecoder()
    standing = decoder.task(asking(0)).shape
    for cpu in range(1, 5000):
        decoder.task(asking(cpu))
    assert len(decoder._shapes) < 300
    assert max(container_sizes(decoder).values()) < 600
    assert decoder.task(asking(0)).shape is standing


def test_a_decoder_reads_the_shapes_of_standing_pods_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a shape takes several times as long as a cache hit."""
    read: list[object] = []
    real = reader.task_shape
    monkeypatch.setattr(reader, "task_shape", lambda *words: read.append(words) or real(*words))
    decoder = PodDecoder()
    tasks = [decoder.task(asking(cpu)) for cpu in range(3000)]
    for cpu, task in enumerate(tasks):
        assert decoder.task(asking(cpu)).shape is task.shape
    assert len(read) == 3000


class Whole:
    """An object that is created from numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers


def test_equal_arguments_have_one_object_as_long_as_it_is_held() -> None:
    shared: SharedObjects[Whole] = SharedObjects(Whole)
    held = [shared.intern(number, 1) for number in (1, 2)]
    assert shared.intern(1, 1) is held[0]
    assert shared.intern(2, 1) is held[1]
    assert [each.numbers for each in held] == [(1, 1), (2, 1)]
    assert len(shared) == 2
    held.pop()
    assert len(shared) == 1
