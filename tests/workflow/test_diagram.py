"""Diagrams as text."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from cano import Stop, StreamTask, Task, Workflow


class Step(Enum):
    START = 1
    STREAM = 2
    DONE = 3
    FAILED = 4


class Start(Task[Step]):
    async def run(self, ctx: Any) -> Literal[Step.STREAM, Step.FAILED]:
        return Step.STREAM


class Stream(StreamTask[Step, int, int, int]):
    def open(self, ctx: Any, cursor: int | None) -> Any:
        return []

    def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
        return item, item

    def flush_window(self, ctx: Any, outputs: list[int]) -> Stop[Literal[Step.FAILED]] | None:
        return None

    def on_close(self, ctx: Any, reason: Any) -> Literal[Step.DONE]:
        return Step.DONE


def flow() -> Workflow[Step]:
    return (
        Workflow[Step](name='a "b"')
        .register(Step.START, Start())
        .register(Step.STREAM, Stream())
        .add_exit_state(Step.DONE, Step.FAILED)
    )


def test_mermaid_declares_each_state_once_and_draws_the_edges_that_annotations_tell() -> None:
    assert flow().to_mermaid() == (
        "stateDiagram-v2\n"
        '    state "START<br/>Start" as START\n'
        '    state "STREAM<br/>Stream" as STREAM\n'
        '    state "DONE" as DONE\n'
        '    state "FAILED" as FAILED\n'
        "    START --> STREAM\n"
        "    START --> FAILED\n"
        "    STREAM --> FAILED\n"
        "    STREAM --> DONE\n"
        "    DONE --> [*]\n"
        "    FAILED --> [*]\n"
    )


def test_dot_quotes_what_it_is_given() -> None:
    text = flow().to_dot()
    assert text.startswith('digraph "a \\"b\\"" {\n')
    assert '    "START" -> "STREAM";\n' in text
    assert '    "DONE" [shape=doublecircle, label="DONE"];\n' in text


def test_a_task_without_annotations_is_drawn_alone() -> None:
    async def silent(ctx):  # type: ignore[no-untyped-def]  # so it is meant
        return "done"

    text = Workflow[str]().register("work", silent).add_exit_state("done").to_mermaid()
    assert "-->" not in text.replace("--> [*]", "")
