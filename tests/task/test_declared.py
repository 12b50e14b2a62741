"""The cursor type that a class declares."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import pytest

from cano import ConfigurationError, StreamTask
from cano.task.stream import cursor_type

X = TypeVar("X")
Y = TypeVar("Y")


class Later:
    pass


class Bare(StreamTask):  # type: ignore[type-arg]  # so it is meant
    async def process_item(self, ctx: Any, item: Any) -> Any:
        return item, item


class Direct(StreamTask[str, int, int, int]):
    pass


class Between(StreamTask[str, X, X, Y], Generic[Y, X]):
    pass


class Heir(Between[bytes, int]):
    pass


class Mixed(Heir):
    pass


class Quoted(StreamTask[str, int, int, "Later"]):
    pass


class Lost(StreamTask[str, int, int, "Nowhere"]):  # type: ignore[name-defined]  # so it is meant
    pass


class Annotated(StreamTask):  # type: ignore[type-arg]  # so it is meant
    async def process_item(self, ctx: Any, item: Any) -> tuple[str, tuple[int, str]]:
        return "", (1, "")


class Ununderstood(StreamTask):  # type: ignore[type-arg]  # so it is meant
    async def process_item(self, ctx: Any, item: Any) -> tuple[str, Nowhere]:  # type: ignore[name-defined]  # noqa: F821 - so it is meant
        return "", 1


class Nothing(StreamTask[str, int, int, None]):
    pass


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Bare, None),
        (Direct, int),
        (Heir, bytes),
        (Mixed, bytes),
        (Quoted, Later),
        (Annotated, tuple[int, str]),
        (Ununderstood, None),
        (Nothing, type(None)),
    ],
)
def test_the_cursor_type_comes_from_the_subscript_or_the_annotation(kind: Any, expected: Any) -> None:
    assert cursor_type(kind()) == expected


def test_a_quoted_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Lost declares the type 'Nowhere'"):
        cursor_type(Lost())
