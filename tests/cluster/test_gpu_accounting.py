"""The GPUs of tasks: whole GPUs with the lowest index, and the fullest GPU for a share."""

from __future__ import annotations

from optsched.cluster.gpu_accounting import GpuBook, gpu_milli
from optsched.cluster.task import DeviceRequest
from tests.support.small import node, shape

WHOLE = shape(1, gpu=2)
HALF, THIRD = (shape(1, device=DeviceRequest(1, part)) for part in (500, 300))


def test_parts_share_a_gpu_and_whole_ones_do_not() -> None:
    book = GpuBook(node("n", gpu=4))
    assert book.allocate(THIRD) == (0,)
    assert book.allocate(WHOLE) == (1, 2)
    assert book.allocate(HALF) == (0,)
    assert book.allocate(HALF) == (3,)
    assert book.allocate(WHOLE) == ()
    assert book.free == [200, 0, 0, 500]


def test_what_is_given_back_is_free_again() -> None:
    book = GpuBook(node("n", gpu=3))
    first, second = book.allocate(WHOLE), book.allocate(HALF)
    book.release(WHOLE, first, ())
    book.release(HALF, second, ())
    assert book.free == [1000, 1000, 1000]
    book.occupy(WHOLE, (1, 2), ())
    assert book.allocate(HALF) == (0,)


def test_who_asks_for_no_gpu_gets_none() -> None:
    book = GpuBook(node("n", gpu=1))
    assert book.allocate(shape(1)) == ()
    assert (gpu_milli(shape(1)), gpu_milli(WHOLE), gpu_milli(HALF)) == (0, 2000, 500)
