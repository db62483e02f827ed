from __future__ import annotations

import pytest

from optsched.kube.scheduler.outcomes import POLICY_CONFIG_MAP, policy_object


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, None),
        ("", None),
        ("policy", None),
        ("volcano-system/", None),
        ("/policy", None),
        ("volcano-system/policy", "ConfigMap volcano-system/policy"),
    ],
)
def test_where_the_policy_comes_from(value: str | None, told: str | None) -> None:
    about = policy_object({} if value is None else {POLICY_CONFIG_MAP: value})
    assert (None if about is None else str(about)) == told
