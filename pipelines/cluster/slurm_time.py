"""A job's time as Slurm takes it."""

import re
from typing import Any

_FORMS = (
    r"(?P<minutes>\d+)(:(?P<seconds>\d+))?",
    r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?",
)
_IN_MINUTES = {"days": 24 * 60, "hours": 60, "minutes": 1, "seconds": 1 / 60}
_WITHOUT_END = ("infinite", "unlimited")


def minutes_of(time: Any) -> float | None:
    """Return the minutes of a number of them, or of a text such as ``"1-12:30"``; of others None.

    A text is MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES,
    DAYS-HOURS:MINUTES:SECONDS or UNLIMITED.
    """
    if type(time) is int:
        return time
    if not isinstance(time, str):
        return None
    if time.lower() in _WITHOUT_END:
        return float("inf")
    found = next(filter(None, (re.fullmatch(form, time, re.ASCII) for form in _FORMS)), None)
    if found is None:
        return None
    return sum(_IN_MINUTES[unit] * int(number or 0) for unit, number in found.groupdict().items())
