"""ProgressObserver: the runs that go on, as live lines on a terminal."""

# ruff: noqa: D102  (what each method is told of is in the docstrings of WorkflowObserver)
from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cano.clock import Duration, now, seconds
from cano.errors import ConfigurationError
from cano.observe.board import Board
from cano.observe.label import state_name
from cano.observer import (
    Checkpointed,
    ItemDropped,
    Retried,
    RunEnded,
    RunStarted,
    StateEntered,
    WindowFlushed,
    WorkflowObserver,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

MOST = 20
"""How many runs have a line at once, if the terminal is high enough."""

_log = logging.getLogger("cano")


class ProgressObserver(WorkflowObserver):
    """Shows the runs of its workflows while the `with` block lasts. Needs `pip install cano[progress]`.

        with ProgressObserver() as progress:
            workflow = Workflow[Step](observers=[progress])
            ...

    console:  a rich `Console`; default one on standard error
    refresh:  seconds or timedelta between two looks

    Each run has a line: workflow and id, state, items and items a second (lately), windows, how long ago it last
    committed, and what was dropped or tried again. The 20 oldest are shown, the rest are counted. A run that ends leaves
    one line that stays.

    Events only change numbers; a thread of its own looks at them, so that the lines are right while the event loop is
    blocked too. On anything that is no terminal nothing is written and no thread is started. Leaving the block, whatever
    ends it, takes the live lines away and gives the cursor back. May be entered again, but not twice at once.

    Raises:
        ConfigurationError: rich is not installed, or `refresh` is no duration above 0.
    """

    def __init__(self, console: Console | None = None, *, refresh: Duration = 0.25) -> None:
        try:
            from rich.console import Console  # noqa: PLC0415  (an extra, imported on first use)
        except ImportError:
            raise ConfigurationError("ProgressObserver needs rich: pip install cano[progress]") from None
        if console is not None and not isinstance(console, Console):
            raise ConfigurationError(f"console must be a rich Console, not a {type(console).__name__}")
        self._refresh = seconds(refresh, "refresh")
        if self._refresh == 0:
            raise ConfigurationError("refresh must be above 0")
        self._own = console is None
        self._console = Console(stderr=True) if console is None else console
        self._board: Board | None = None
        self._live: Live | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    # -- showing it -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._board is not None:
            raise ConfigurationError("a ProgressObserver can be entered once at a time")
        if self._shows():
            self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        live, thread, board = self._live, self._thread, self._board
        self._live = self._thread = self._board = None
        self._done.set()
        if live is None or board is None:
            return
        try:
            if thread is not None:
                thread.join()
            with suppress(OSError, ValueError):  # the terminal has gone
                self._leave_summaries(live, board)
        finally:
            with suppress(OSError, ValueError):  # likewise
                live.stop()

    def _shows(self) -> bool:
        if self._own and not _is_terminal(sys.stderr):  # rich takes the word of FORCE_COLOR for it
            return False
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def _begin(self) -> None:
        from rich.live import Live  # noqa: PLC0415  (an extra, imported on first use)

        live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=_is_terminal(sys.stdout),  # what goes to a file is none of its business
            redirect_stderr=_is_terminal(sys.stderr),
        )
        try:
            live.start()
            self._start(live)
        except BaseException:
            live.stop()
            raise

    def _start(self, live: Live) -> None:
        self._live, self._board, self._done = live, Board(), threading.Event()
        thread = threading.Thread(
            target=self._keep_showing, args=(live, self._board, self._done), name="cano-progress", daemon=True
        )
        thread.start()
        self._thread = thread

    def _keep_showing(self, live: Live, board: Board, done: threading.Event) -> None:
        while not done.wait(self._refresh):
            try:
                self._leave_summaries(live, board)
                live.update(self._picture(board), refresh=True)
            except Exception as error:
                _log.warning("progress is not shown any more: %s", type(error).__name__)
                return

    def _leave_summaries(self, live: Live, board: Board) -> None:
        from rich.text import Text  # noqa: PLC0415  (an extra, imported on first use)

        for summary in board.summaries():
            live.console.print(Text(summary), soft_wrap=True)

    def _picture(self, board: Board) -> RenderableType:
        from rich.table import Table  # noqa: PLC0415  (an extra, imported on first use)
        from rich.text import Text  # noqa: PLC0415  (likewise)

        most = max(1, min(MOST, self._console.height - 2))
        rows, more = board.rows(now(), most)
        table = Table.grid(padding=(0, 2))
        for place in range(7):
            table.add_column(justify="right" if 2 <= place <= 5 else "left", no_wrap=True, overflow="ellipsis")
        for cells in rows:
            table.add_row(*(Text(cell) for cell in cells))
        if more:
            table.add_row(Text(f"+ {more:,} more"))
        return table

    # -- what runs tell ---------------------------------------------------------------------------------------------

    def on_run_start(self, event: RunStarted) -> None:
        if (board := self._board) is not None:
            board.line(event)

    def on_state_enter(self, event: StateEntered) -> None:
        if (board := self._board) is not None:
            board.line(event).state = state_name(event.state)

    def on_checkpoint(self, event: Checkpointed) -> None:
        if (board := self._board) is not None:
            board.line(event).commits += 1

    def on_window(self, event: WindowFlushed) -> None:
        if (board := self._board) is not None:
            board.window(event)

    def on_item_dropped(self, event: ItemDropped) -> None:
        if (board := self._board) is not None:
            board.dropped(event)

    def on_retry(self, event: Retried) -> None:
        if (board := self._board) is not None:
            board.line(event).retries += 1

    def on_run_end(self, event: RunEnded) -> None:
        if (board := self._board) is not None:
            board.ended(event)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
