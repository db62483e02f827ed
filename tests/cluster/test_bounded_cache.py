"""Memories that stay small."""

from __future__ import annotations

from optsched.cluster.bounded_cache import Interned, RecentCache, SharedObjects
from optsched.cluster.task import TaskShape
from optsched.formats.codec.pods.reader import PodDecoder
from tests.formats.objects import pod


def test_what_is_not_asked_for_is_forgotten() -> None:
    recent: RecentCache[int, int] = RecentCache(2)
    for number in range(10):
        recent.add(number, number)
        assert recent.get(0) == 0
    assert recent.get(9) == 9
    assert [number for number in range(1, 6) if recent.get(number) is not None] == []


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


def test_a_decoder_keeps_the_shape_of_a_standing_pod_and_few_others() -> None:
    """However many unlike pods come and go, a pod like one that stands has its very shape."""

    def asking(cpu: int) -> TaskShape:
        containers = [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}]
        return decoder.task(pod("p", {"containers": containers})).shape

    decoder = PodDecoder()
    standing = asking(0)
    for cpu in range(1, 5000):
        asking(cpu)
    assert len(decoder._shapes) < 2100
    assert asking(0) is standing


class Whole:
    """An object that is built of numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers


def test_equal_arguments_have_one_object_as_long_as_it_is_held() -> None:
    shared: SharedObjects[Whole] = SharedObjects(Whole)
    held = [shared.find(number, 1) for number in (1, 2)]
    assert shared.find(1, 1) is held[0]
    assert shared.find(2, 1) is held[1]
    assert [each.numbers for each in held] == [(1, 1), (2, 1)]
    assert len(shared) == 2
    held.pop()
    assert len(shared) == 1
