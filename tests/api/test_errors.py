from __future__ import annotations

import pickle

from optsched.units import FieldError

ERRORS = (
    FieldError("spec.weight", 70000, "is out of range: write 1 to 65535"),
    FieldError("spec.capability[cpu]", "1 Gi", "is not a quantity"),
)


def test_an_error_reads_as_one_line():
    assert list(map(str, ERRORS)) == [
        "spec.weight: 70000 is out of range: write 1 to 65535",
        'spec.capability[cpu]: "1 Gi" is not a quantity',
    ]


def test_an_error_crosses_processes():
    assert pickle.loads(pickle.dumps(ERRORS)) == ERRORS
