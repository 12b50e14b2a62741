"""What is known of the runs that go on, for showing it: events write it down, and a timer makes lines of it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from cano.observe.label import shown, state_name
from cano.observer import Event, ItemDropped, Outcome, RunEnded, WindowFlushed

SPAN = 10.0
"""Over how many seconds a rate is taken."""
SUMMARIES = 100
"""How many summaries are shown at once; those beyond are only counted."""
KEPT = 10_000
"""How many ended runs wait for their summary, should the timer be stuck; the oldest are forgotten."""

Cells = tuple[str, str, str, str, str, str, str]


@dataclass(slots=True)
class Pace:
    """How a run's numbers change, by the clock of whoever looks at them."""

    began: float
    commits: int = 0
    committed: float = 0.0
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self, now: float, items: int, commits: int) -> None:
        """The numbers are these now."""
        if commits != self.commits or not self.samples:
            self.commits, self.committed = commits, now
        self.samples.append((now, items))
        while len(self.samples) > 2 and self.samples[1][0] < now - SPAN:
            self.samples.popleft()

    @property
    def rate(self) -> float:
        """Items a second, lately."""
        (first, before), (last, after) = self.samples[0], self.samples[-1]
        return (after - before) / (last - first) if last > first else 0.0


@dataclass(slots=True)
class Line:
    """One run. Its numbers are changed in its own thread only; `pace` belongs to the timer."""

    workflow: str
    workflow_id: str
    state: str = "-"
    items: int = 0
    windows: int = 0
    commits: int = 0
    dropped: int = 0
    retries: int = 0
    pace: Pace | None = None

    @property
    def name(self) -> str:
        """Whose line this is."""
        return f"{self.workflow} {self.workflow_id}"

    @property
    def errors(self) -> str:
        """What went wrong and was got over."""
        found = [f"{self.dropped:,} dropped"] if self.dropped else []
        return ", ".join([*found, f"{self.retries:,} {'retry' if self.retries == 1 else 'retries'}"] if self.retries else found)

    def cells(self, now: float) -> Cells:
        """Name, state, items, rate, windows, lag, errors."""
        if self.pace is None:
            self.pace = Pace(now)
        self.pace.look(now, self.items, self.commits)
        lag = f"{now - self.pace.committed:.1f} s ago" if self.commits else ""
        if not self.windows:
            return self.name, self.state, "", "", "", lag, self.errors
        items, windows = f"{self.items:,} items", f"{self.windows:,} windows"
        return self.name, self.state, items, f"{self.pace.rate:,.0f}/s", windows, lag, self.errors

    def summary(self, outcome: Outcome, seconds: float, error_type: str | None) -> str:
        """The line that a run leaves."""
        why = f" ({error_type})" if outcome == "failed" and error_type else ""
        parts = [f"{self.name} {outcome}{why} in {self.state} after {seconds:.1f} s"]
        if self.windows:
            rate = self.items / seconds if seconds > 0 else 0.0
            parts.append(f"{self.items:,} items in {self.windows:,} windows, {rate:,.0f}/s")
        return ", ".join([*parts, self.errors] if self.errors else parts)


class Board:
    """The runs that go on, and those that ended and have not left their summary yet.

    Events come in the threads of their event loops and the timer has one of its own. Every step here that both take part
    in is one of a dict or a deque, which are whole by themselves.
    """

    def __init__(self) -> None:
        self._lines: dict[int, Line] = {}
        self._ended: deque[tuple[Line, RunEnded]] = deque(maxlen=KEPT)

    # -- what runs tell ---------------------------------------------------------------------------------------------

    def line(self, event: Event) -> Line:
        """The line of a run, even one that had begun before anybody looked."""
        line = self._lines.get(event.run)
        if line is None:
            line = self._lines[event.run] = Line(shown(event.workflow), shown(event.workflow_id))
            line.state = state_name(event.state)
        return line

    def window(self, event: WindowFlushed) -> None:
        """A window was committed."""
        line = self.line(event)
        line.items += event.count
        line.windows += 1
        line.commits += 1

    def dropped(self, event: ItemDropped) -> None:
        """An item was dropped."""
        self.line(event).dropped += 1

    def ended(self, event: RunEnded) -> None:
        """A run is over."""
        line = self.line(event)
        del self._lines[event.run]
        self._ended.append((line, event))

    # -- what the timer asks for ------------------------------------------------------------------------------------

    def rows(self, now: float, most: int) -> tuple[list[Cells], int]:
        """A row for each of the runs that have been going on for longest, and how many more there are."""
        lines = list(self._lines.values())
        return [line.cells(now) for line in lines[:most]], max(0, len(lines) - most)

    def summaries(self) -> list[str]:
        """A line for each run that has ended since."""
        found: list[str] = []
        more: Counter[str] = Counter()
        for _ in range(len(self._ended)):
            line, event = self._ended.popleft()
            if len(found) < SUMMARIES:
                found.append(line.summary(event.outcome, event.seconds, event.error_type))
            else:
                more[event.outcome] += 1
        if more:
            found.append(f"and {more.total():,} more: " + ", ".join(f"{count:,} {outcome}" for outcome, count in more.items()))
        return found
