"""Let file permissions apply to tests that run as root."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION_3: Final = 0x20080522
_DAC_OVERRIDE: Final = 1
_DAC_READ_SEARCH: Final = 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


@contextmanager
def permissions_apply() -> Iterator[None]:
    """Drop the capabilities by which root reads files without a permission, in this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    if libc.capget(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capget")
    before = sets[0].effective
    sets[0].effective = before & ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    _set(libc, header, sets)
    try:
        yield
    finally:
        sets[0].effective = before
        _set(libc, header, sets)


def _set(libc: ctypes.CDLL, header: _Header, sets: ctypes.Array[_Sets]) -> None:
    if libc.capset(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capset")
