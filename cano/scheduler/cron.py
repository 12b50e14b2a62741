"""The calendar of a cron expression. The only file that knows cronsim."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cano.errors import ConfigurationError

if TYPE_CHECKING:
    from cronsim import CronSim

_NOTHING, _SECOND, _MINUTE, _DAY = timedelta(0), timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
_YEARS = 50


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

    __slots__ = ("_expression", "_kind", "_of_day", "_zone")

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
        fields = expression.split()
        self._of_day = len(fields) == 5 and not any(field.startswith("*") for field in fields[:2])
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
        for found in self._once_a_day(instant) if self._of_day else self._as_it_passes(instant):
            if found > last:
                last = found
                yield found

    def _labels(self, local: datetime) -> Iterator[datetime]:
        """What the expression names after a local time, as if no clock were ever changed. cronsim is not given the zone:
        with one it never returns where a fold crosses midnight.
        """
        return iter(self._kind(self._expression, local.replace(tzinfo=UTC)))

    def _once_a_day(self, instant: datetime) -> Iterator[datetime]:
        for label in self._labels(instant.astimezone(self._zone)):
            found = self._instant(label)
            while found is None:  # in a gap
                label += _MINUTE  # noqa: PLW2901  # what the label becomes
                found = self._instant(label)
            yield found

    def _as_it_passes(self, instant: datetime) -> Iterator[datetime]:
        local = instant.astimezone(self._zone)
        back = _offset(local) - _offset((instant + _DAY).astimezone(self._zone))
        start = local.replace(tzinfo=None) - max(back, _NOTHING)  # these labels will be repeated
        repeated: deque[datetime] = deque()
        horizon = start.year + _YEARS
        for label in self._labels(start):
            first = self._instant(label)
            if first is None:
                if label.year > horizon:  # it names times of gaps only
                    break
                continue
            horizon = label.year + _YEARS
            while repeated and repeated[0] <= first:
                yield repeated.popleft()
            yield first
            second = self._instant(label, fold=1)
            if second is not None and second > first:
                repeated.append(second)
        yield from repeated

    def _instant(self, label: datetime, fold: int = 0) -> datetime | None:
        """The instant at which the clocks show this; None in a gap."""
        found = label.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
        shown = found.astimezone(self._zone)
        return found if shown.replace(tzinfo=UTC, fold=0) == label else None

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


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or _NOTHING


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
