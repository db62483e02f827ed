"""How hard tests try: more examples at night."""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("OPTSCHED_EFFORT", "1"))
"""Examples are multiplied by this."""
