"""Parse ranges of hours, such as 22:00-6:00, in which Volcano's tdm plugin lends nodes."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from optsched.units.unit_errors import UnitError

_TIME: Final = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"
_HOURS: Final = re.compile(rf"\s*{_TIME}-{_TIME}\s*")
_ACCEPTED: Final = "are not hours of the day: write two times such as 8:30-18:00"
_DAY_S: Final = 24 * 3600


class HoursError(UnitError):
    """Raised for a text that is not a range of hours of the day, such as 8:30-18:00."""

    def __init__(self, text: object) -> None:
        super().__init__(text, _ACCEPTED)


class Hours(NamedTuple):
    """A range in seconds of the day, ends included; a range with start_s ≥ end_s spans midnight."""

    start_s: int
    end_s: int

    def __contains__(self, moment_ms: object) -> bool:
        """Return whether a time, in milliseconds since 1970, is within these hours in UTC."""
        if not isinstance(moment_ms, int):
            return False
        second = moment_ms // 1000 % _DAY_S
        if self.start_s < self.end_s:
            return self.start_s <= second <= self.end_s
        return second >= self.start_s or second <= self.end_s


def parse_hours(text: object) -> Hours:
    """Return the range of hours in a text; two equal times mean the whole day.

    A range is two times in Go's layout 15:04 with a hyphen between them. Raises `HoursError`.
    """
    match = _HOURS.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise HoursError(text)
    hour, minute, last_hour, last_minute = (int(part) for part in match.groups())
    return Hours((hour * 60 + minute) * 60, (last_hour * 60 + last_minute) * 60)
