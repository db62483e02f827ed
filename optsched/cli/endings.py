"""Codes with which commands end that work on files; `optsched.cli.cluster.Exit` has the others."""

from __future__ import annotations

from typing import Final

BAD_INPUT: Final = 2
NO_PLAN: Final = 3
NOT_KEPT: Final = 4
"""What was to be kept could not be written."""

STOPPED: Final = 130
