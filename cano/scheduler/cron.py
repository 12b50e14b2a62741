"""The calendar of a cron expression. The only file that knows cronsim."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cano.errors import ConfigurationError

if TYPE_CHECKING:
    from cronsim import CronSim

_SECOND = timedelta(seconds=1)


class Calendar:
    """The instants that a cron expression names in a time zone, all in UTC.

    The expression has five fields (minute, hour, day of month, month, day of week), or six with seconds first. A day
    has to match both the day of month and the day of week if one of the two starts with `*`, else either of them.

    When the clocks change:

    - An expression of five fields whose minute and hour do not start with `*` is for a time of day, and comes once on
      every day it names. A time that the spring change leaves out becomes the first minute after the gap; of a time that
      the autumn change repeats the first is meant. Two times that become the same minute are one.
    - Any other expression follows the time that really passes: what a gap leaves out does not come, and what is repeated
      comes both times.

    Raises:
        ConfigurationError: the expression or the zone is wrong, the expression never matches, or cronsim is missing.
    """

    __slots__ = ("_expression", "_kind", "_zone")

    def __init__(self, expression: str, tz: str | tzinfo, *, after: datetime) -> None:
        try:
            from cronsim import CronSim, CronSimError  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise ConfigurationError("cron flows need cronsim: pip install cano[cron]") from error
        if not isinstance(expression, str):
            raise ConfigurationError(f"a cron expression must be a str, not a {type(expression).__name__}")
        self._kind: type[CronSim] = CronSim
        self._expression = expression
        self._zone = zone_of(tz)
        try:
            found = self.following(after)
        except CronSimError as error:
            raise ConfigurationError(f"the cron expression {expression[:80]!r} is wrong: {error}") from error
        if found is None:
            raise ConfigurationError(f"the cron expression {expression[:80]!r} never matches")

    def __repr__(self) -> str:
        return f"Calendar({self._expression!r}, {self._zone})"

    def after(self, instant: datetime) -> Iterator[datetime]:
        """The instants after this one, strictly increasing. Ends if there is none within fifty years."""
        last = instant
        for local in self._kind(self._expression, instant.astimezone(self._zone)):
            found = local.astimezone(UTC)  # a local time may come twice, or not exist: what counts is the instant
            if found > last:
                last = found
                yield found

    def following(self, instant: datetime) -> datetime | None:
        """The first instant after this one; None if there is none within fifty years."""
        return next(self.after(instant), None)

    def latest(self, known: datetime, until: datetime) -> datetime:
        """The last instant up to and including `until`, of which `known` is one that is not later. However many are
        between, few are looked at.
        """
        low, high = known, until
        while high - low >= _SECOND:
            middle = low + (high - low) / 2
            found = self.following(middle)
            if found is not None and found <= until:
                low = found
            else:
                high = middle
        return low


def zone_of(tz: str | tzinfo) -> tzinfo:
    """Return a time zone.

    Raises:
        ConfigurationError: it is none, or there is none of that name.
    """
    if isinstance(tz, ZoneInfo) or tz is UTC:
        return tz
    if not isinstance(tz, str):
        raise ConfigurationError(f"tz must be a ZoneInfo or the name of a time zone, not a {type(tz).__name__}")
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"there is no time zone {tz[:80]!r}; names look like 'Europe/Berlin'. Where the system has none: pip install tzdata"
        ) from error
