"""The amount of published data in tests: a part, or all data with OPTSCHED_RESEARCH=full."""

from __future__ import annotations

import os

RESEARCH = os.environ.get("OPTSCHED_RESEARCH", "part")
"""Either `part` or `full`."""
