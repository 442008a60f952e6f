"""Ranges of numbers and dates, for filters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Real
from typing import Any

from callslip.errors import BadSetting

# The length is bounded because Python does not parse integers with thousands of digits.
_NUMBER = re.compile(r"(?=.{1,300}\Z)[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_TIME = r"[T ][0-9]{2}(:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?"
_DATE = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}(-[0-9]{{2}}({_TIME})?)?")


@dataclass(frozen=True)
class Range:
    """Numbers, or ISO dates, from `low` to `high`, both inclusive; None leaves an end open.

    Dates compare as strings, and a shorter end includes everything with that prefix: `high="2022-03"` includes all of
    March. Strings that parse as numbers, as in CSV files, are numbers; booleans are not.
    """

    low: float | str | None = None
    high: float | str | None = None

    def __post_init__(self) -> None:
        ends = [end for end in (self.low, self.high) if end is not None]
        if not ends:
            raise BadSetting("the range has neither low nor high", "Give low, high, or both.")
        for end in ends:
            if date_of(end) is None and (isinstance(end, str) or number_of(end) is None):
                raise BadSetting(
                    f"{end!r} cannot be the end of a range", "Use numbers, or ISO dates such as '2020-01-31'."
                )
        if len({isinstance(end, str) for end in ends}) > 1:
            raise BadSetting(
                f"the range {self} has a number at one end and a date at the other",
                "Write both as numbers, or both as dates such as 2020-01.",
            )
        if len(ends) == 2 and not self._below_high(self.low):
            raise BadSetting(f"the range {self} is empty: it ends before it begins", "Swap low and high.")

    def __str__(self) -> str:
        return f"{'' if self.low is None else self.low}..{'' if self.high is None else self.high}"

    @property
    def of_dates(self) -> bool:
        return isinstance(self.low, str) or isinstance(self.high, str)

    def holds(self, value: Any) -> bool:
        """Whether a value is of the range's type and lies in the range."""
        value = date_of(value) if self.of_dates else number_of(value)
        return value is not None and self._above_low(value) and self._below_high(value)

    def _above_low(self, value: Any) -> bool:
        return self.low is None or value >= self.low

    def _below_high(self, value: Any) -> bool:
        if isinstance(self.high, str):
            return value[: len(self.high)] <= self.high
        return self.high is None or value <= self.high

    @classmethod
    def parse(cls, text: str) -> Range | None:
        """`2018..2022`, `2018..`, `..2022-05-31`; None unless every given end is a number or an ISO date."""
        low, dots, high = text.partition("..")
        if not dots or not (low or high):
            return None
        ends = [None if not end else date_of(end) or number_of(end) for end in (low, high)]
        if any(given and end is None for given, end in zip((low, high), ends, strict=True)):
            return None
        return cls(*ends)


def number_of(value: Any) -> Any:
    """The value as a number, or None: numbers except booleans and NaN, and strings that parse as a number."""
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            return None
        return int(value) if value.lstrip("+-").isdecimal() else float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)) or value != value:
        return None
    return value


def date_of(value: Any) -> str | None:
    """The value if it is an ISO date or time: 2020-05, 2020-05-31, 2020-05-31T12:00:00Z."""
    return value if isinstance(value, str) and _DATE.fullmatch(value) else None
