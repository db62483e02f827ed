"""How much published data tests go through: a part of it, or all with OPTSCHED_RESEARCH=full."""

from __future__ import annotations

import os

RESEARCH = os.environ.get("OPTSCHED_RESEARCH", "part")
"""`part` or `full`."""
