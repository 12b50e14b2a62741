"""Window arithmetic, without an event loop. A dot is 10 ms."""

from __future__ import annotations

from cano import Window
from cano.clock import TURN, Turn
from cano.task.window import OpenWindow


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(window: Window) -> tuple[OpenWindow, Clock]:
    clock = Clock()
    return OpenWindow(window, clock), clock


def test_the_deadline_is_a_period_after_the_window_began() -> None:
    # began      first output        deadline
    # |..........x...................|
    window, clock = opened(Window(seconds=0.3))
    clock.now += 0.1
    assert round(window.arm() - 100.0, 6) == 0.3


def test_an_empty_window_moves_on_by_whole_periods() -> None:
    # began                          missed                         first output   deadline
    # |..............................|..............................|.....x........|
    window, clock = opened(Window(seconds=0.3))
    clock.now += 0.65
    assert round(window.arm() - 100.0, 6) == 0.9


def test_an_output_at_the_very_deadline_belongs_to_the_next_window() -> None:
    window, clock = opened(Window(seconds=0.25))
    clock.now += 0.25
    assert window.arm() - 100.0 == 0.5


def test_a_new_window_begins_when_the_old_one_is_committed() -> None:
    # began      flush begins   committed, began                deadline
    # |..........x..............|..............................|
    window, clock = opened(Window(seconds=0.3))
    window.outputs.append(1)
    window.arm()
    clock.now += 0.4
    assert window.take() == [1]
    clock.now += 0.1
    assert round(window.begin(), 6) == 0.5
    assert round(window.deadline - 100.0, 6) == 0.8
    assert window.outputs == []


def test_what_was_taken_is_not_touched_again() -> None:
    window, _ = opened(Window(count=2))
    window.outputs.append(1)
    taken = window.take()
    window.outputs.append(2)
    assert taken == [1]


def test_a_count_window_has_no_deadline() -> None:
    window, clock = opened(Window(count=3))
    clock.now += 1e9
    assert not window.timed
    assert window.deadline > clock.now
    assert window.limit == 3


def test_a_turn_is_due_after_ten_milliseconds_and_the_stride_follows_the_pace() -> None:
    clock = Clock()
    turn = Turn(clock)
    for _ in range(12):
        clock.now += 1e-7 * turn.stride
        assert not turn.look(clock())
    assert turn.stride == 64
    clock.now += 0.001 * turn.stride
    assert turn.look(clock())
    assert turn.stride == 1
    turn.taken()
    clock.now += TURN * 0.6
    assert not turn.look(clock())
    clock.now += TURN * 0.6
    assert turn.look(clock())
