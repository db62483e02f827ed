"""docs/pending.md lists every waiting reason, in the order of the checks."""

from __future__ import annotations

import re

from optsched.cluster.reasons import ReasonCode
from tests.support.pages import ROOT


def test_all_reasons_are_explained_in_their_order() -> None:
    text = (ROOT / "docs" / "pending.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.M) == [code.value for code in ReasonCode]
