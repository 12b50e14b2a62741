"""The codec: a value comes back equal and of the same types, or it is refused by the name of its type."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import uuid
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Union
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from cano.errors import ConfigurationError, CursorError, TaskExecutionError
from cano.recovery.codec import UNDECLARED, Codec, Encoded, immutable, native, same
from tests.recovery.logs import child

SECRET = "s3cr3t"


class Outer:
    class Phase(Enum):
        QUERY = "query"
        SECRET = "s3cr3t"

    class Level(IntEnum):
        LOW = 1
        HIGH = 2

    class Word(StrEnum):
        SECRET = "s3cr3t"


@dataclasses.dataclass(frozen=True)
class Position:
    shard: str
    offset: int
    at: datetime | None = None
    marks: tuple[int, ...] = ()


@dataclasses.dataclass
class Loose:
    offset: int
    seen: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Holder:
    inner: Loose


@dataclasses.dataclass(frozen=True)
class Uncompared:
    offset: int
    note: str = dataclasses.field(default="", compare=False)
    late: int = dataclasses.field(default=0, init=False)


class Point(NamedTuple):
    x: int
    name: str


class Bag(NamedTuple):
    items: list[int]


class Model(BaseModel):
    offset: int
    price: Decimal = Decimal(0)
    phase: Outer.Phase = Outer.Phase.QUERY
    inner: Optional[Model] = None  # noqa: UP045 - as people write it


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    offset: int
    word: str = ""


class FrozenHolder(BaseModel):
    model_config = ConfigDict(frozen=True)
    seen: list[int]


class Excluding(BaseModel):
    offset: int
    password: str = Field(default="", exclude=True)


class Private(BaseModel):
    offset: int
    _seen: int = PrivateAttr(default=0)


class Permissive(BaseModel):
    model_config = ConfigDict(extra="allow")
    offset: int


class Moody(BaseModel):
    """Its validator raises what pydantic does not turn into a ValidationError."""

    offset: int

    @field_validator("offset")
    @classmethod
    def moody(cls, offset: int) -> int:
        if offset < 0:
            raise KeyError(SECRET)
        return offset


class Number(int):
    pass


class Text(str):
    __slots__ = ()


class Real(float):
    pass


class Items(list[Any]):
    pass


class Plain:
    """Nothing that pydantic knows."""


Offset = NewType("Offset", int)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def round_trip(codec: Codec, value: Any) -> None:
    blob = codec.encode(value)
    assert isinstance(blob, bytes)
    back = codec.decode(bytes(blob))
    assert same(value, back), (value, back)


def refused(codec: Codec, value: Any, name: str | None = None) -> None:
    with pytest.raises(CursorError) as caught:
        codec.encode(value)
    assert f"a value of type {name or type(value).__qualname__};" in str(caught.value)
    assert SECRET not in str(caught.value) + repr(caught.value)


# -- undeclared ---------------------------------------------------------------------------------------------------------


@given(JSON)
def test_json_native_values_come_back_exactly(value: Any) -> None:
    round_trip(Codec(), value)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40), 10**4000])
def test_integers_of_any_size_come_back_exactly(number: int) -> None:
    """BR-56."""
    for value in (number, [number], {"a": {"b": [number, 1, None]}}):
        round_trip(Codec(), value)
    round_trip(Codec(int), number)
    round_trip(Codec(list[int]), [number])
    round_trip(Codec(dict[str, int]), {"a": number})
    round_trip(Codec(Position), Position("s", number))
    round_trip(Codec(Offset), Offset(number))


@pytest.mark.parametrize("declared", [UNDECLARED, int, list[int]])
def test_an_integer_too_long_for_python_to_write_is_refused_like_any_other_value(declared: Any) -> None:
    refused(Codec(declared), 10**5000 if declared is not list[int] else [10**5000])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_floats_that_json_does_not_have_are_refused(number: float) -> None:
    refused(Codec(), number)
    refused(Codec(), [{"a": number}], "list")
    refused(Codec(float), number)
    refused(Codec(list[float]), [number])
    refused(Codec(float | None), number)


@pytest.mark.parametrize("number", [0.1, -0.0, 1e308, 5e-324, 1.0])
def test_floats_come_back_to_the_last_bit(number: float) -> None:
    for codec in (Codec(), Codec(float), Codec(float | None)):
        assert math.copysign(1, codec.decode(codec.encode(number))) == math.copysign(1, number)
        round_trip(codec, number)


@pytest.mark.parametrize(
    "value",
    [
        *((SECRET,), {SECRET}, frozenset([SECRET]), SECRET.encode(), bytearray(SECRET.encode())),
        *(Outer.Phase.SECRET, Outer.Level.HIGH, Outer.Word.SECRET, Number(7), Text(SECRET), Real(1.5), Items([SECRET])),
        *(OrderedDict(a=SECRET), defaultdict(str, a=SECRET), Decimal("1.5"), Fraction(1, 3), 1j, uuid.uuid4()),
        *(datetime(2026, 1, 1), date(2026, 1, 1), timedelta(1)),
        *(Position(SECRET, 1), Point(1, SECRET), Model(offset=1), object(), object),
        *(SECRET + "\ud800", {1: SECRET}, {None: SECRET}, {Text(SECRET): 1}, {"\udfff": 1}),
    ],
    ids=lambda value: type(value).__qualname__,
)
def test_what_json_does_not_give_back_is_refused_undeclared_by_its_type_and_never_its_value(value: Any) -> None:
    refused(Codec(), value)
    refused(Codec(), [1, value], "list")
    refused(Codec(), {"a": {"b": value}}, "dict")


def test_a_value_that_holds_itself_or_is_too_deep_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    try:
        refused(Codec(), loop)
        refused(Codec(), deep)
        refused(Codec(list[Any]), loop)
    finally:
        while deep:  # taken apart from outside: its own destructor would go as deep
            deep = deep.pop()


def test_a_refusal_says_what_and_how_to_help_and_is_of_the_class_asked_for() -> None:
    codec = Codec(what="ctx.data", remedy="give data_type=", error=TaskExecutionError)
    with pytest.raises(
        TaskExecutionError, match=r"^ctx\.data cannot be stored: a value of type set; .*give data_type=$"
    ) as caught:
        codec.encode({1})
    assert type(caught.value) is TaskExecutionError
    with pytest.raises(TaskExecutionError, match=r"^ctx\.data cannot be read from the log"):
        codec.decode(b"{")


# -- declared -----------------------------------------------------------------------------------------------------------

BERLIN_WINTER = timezone(timedelta(hours=1))
DECLARED: list[tuple[Any, Any]] = [
    (int, 5),
    (str, "naïve ☃ \x00"),
    (bool, True),
    (float, 1.5),
    (type(None), None),
    (Outer.Phase, Outer.Phase.QUERY),
    (Outer.Level, Outer.Level.HIGH),
    (Outer.Word, Outer.Word.SECRET),
    (Decimal, Decimal("1.000")),
    (Decimal, Decimal("1E+400")),
    (Fraction, Fraction(1, 3)),
    (datetime, datetime(2026, 1, 1, 12, 0, 0, 123456)),
    (datetime, datetime(2026, 1, 1, 12, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 1, 12, tzinfo=BERLIN_WINTER)),
    (date, date(2026, 2, 28)),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (UUID, uuid.UUID(int=7)),
    (bytes, b"\xff\xfe\x00'"),
    (bytes, b""),
    (list[bytes], [b"\x80", b"a"]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[()], ()),
    (set[int], {3, 1}),
    (frozenset[str], frozenset("a")),
    (dict[int, str], {2: "b", 1: "a"}),
    (dict[Outer.Phase, int], {Outer.Phase.QUERY: 1}),
    (dict[datetime, int], {datetime(2026, 1, 1): 1}),
    (Position, Position("a", 2**70, datetime(2026, 1, 1, tzinfo=UTC), (1, 2))),
    (Loose, Loose(1, [2])),
    (Holder, Holder(Loose(1))),
    (Uncompared, Uncompared(1, "note")),
    (Point, Point(1, "a")),
    (list[Point], [Point(1, "a")]),
    (Model, Model(offset=1, price=Decimal("2.50"), inner=Model(offset=2, phase=Outer.Phase.SECRET))),
    (Frozen, Frozen(offset=1)),
    (Permissive, Permissive(offset=1, more=[1])),  # type: ignore[call-arg]  # the model permits more
    (Private, Private(offset=1)),
    (Optional[int], None),  # noqa: UP045 - the older spelling
    (Optional[int], 5),  # noqa: UP045 - the older spelling
    (Union[int, str], "5"),  # noqa: UP007 - the older spelling
    (int | str, 5),
    (int | float, 1.0),
    (int | float, 1),
    (bool | int, 1),
    (bool | int, True),
    (date | datetime, datetime(2026, 1, 1)),
    (date | datetime, date(2026, 1, 1)),
    (Decimal | int, Decimal(5)),
    (Decimal | int, 5),
    (Position | None, Position("a", 1)),
    (Literal["a", 1], "a"),
    (Literal["a", 1], 1),
    (Annotated[int, Field(gt=0)], 5),
    (Annotated[int, {"unhashable": 1}], 5),
    (Offset, Offset(5)),
    (Any, {"a": [1, None, 1.5]}),
    (object, [1, "a"]),
    (list, [1, "a"]),
    (dict, {"a": 1}),
]


@pytest.mark.parametrize(("declared", "value"), DECLARED, ids=lambda value: str(value)[:40])
def test_declared_values_come_back_equal_and_of_the_same_type(declared: Any, value: Any) -> None:
    """BR-50."""
    round_trip(Codec(declared), value)


@given(
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(),
    st.datetimes(
        timezones=st.timezones().map(lambda zone: timezone(datetime(2026, 1, 1, tzinfo=zone).utcoffset() or timedelta()))
    ),
    st.binary(),
    st.uuids(),
    st.tuples(st.integers(), st.text(), st.none() | st.dates()),
)
def test_declared_values_of_many_kinds_come_back(
    number: Decimal, naive: datetime, aware: datetime, raw: bytes, identity: UUID, pair: tuple[int, str, date | None]
) -> None:
    round_trip(Codec(Decimal), number)
    round_trip(Codec(datetime), naive)
    assert Codec(datetime).decode(Codec(datetime).encode(naive)).tzinfo is None
    round_trip(Codec(datetime), aware)
    assert Codec(datetime).decode(Codec(datetime).encode(aware)).utcoffset() == aware.utcoffset()
    round_trip(Codec(bytes), raw)
    round_trip(Codec(bytes | None), raw)
    round_trip(Codec(UUID), identity)
    round_trip(Codec(tuple[int, str, date | None]), pair)
    round_trip(Codec(Position), Position(pair[1], pair[0], aware, (1,)))


def test_a_datetime_is_the_same_in_a_process_with_another_time_zone() -> None:
    """BR-54."""
    script = """
import time
from datetime import datetime, timezone
from cano.recovery.codec import Codec
os.environ["TZ"] = "America/New_York"
time.tzset()
codec = Codec(datetime)
for line in sys.stdin:
    value = codec.decode(line.encode())
    assert codec.encode(value) == line.strip().encode()
    say(value.isoformat(), value.tzinfo is None)
"""
    naive, aware = datetime(2026, 1, 1, 12), datetime(2026, 7, 1, 12, tzinfo=UTC)
    codec = Codec(datetime)
    assert os.environ.get("TZ", "UTC") in ("UTC", "")
    with child(script) as elsewhere:
        elsewhere.tell(codec.encode(naive).decode())
        elsewhere.tell(codec.encode(aware).decode())
        out = elsewhere.end_well()
    assert out.splitlines() == ["2026-01-01T12:00:00 True", "2026-07-01T12:00:00+00:00 False"]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (int, True),
        (bool, 1),
        (int, 1.0),
        (float, 1),
        (int, "1"),
        (str, b"a"),
        (int, Number(1)),
        (str, Text(SECRET)),
        (str, Outer.Word.SECRET),
        (int, Outer.Level.HIGH),
        (int, None),
        (str, "\ud800"),
        (list[int], [True]),
        (list[int], [1.0]),
        (list[int], ["1"]),
        (list[int], (1,)),
        (list[int], Items([1])),
        (list[float], [1]),
        (list[str], ["\ud800"]),
        (tuple[int, ...], [1]),
        (tuple[int, ...], Bag([1])),
        (tuple[int, int], (1,)),
        (set[int], {True}),
        (frozenset[int], {1}),
        (dict[str, int], OrderedDict(a=1)),
        (dict[int, str], {True: "a"}),
        (dict[str, Any], {"a": (1,)}),
        (dict[str, Any], {"a": {1}}),
        (Any, Outer.Phase.QUERY),
        (Any, {1: 2}),
        (object, (1,)),
        (int | Outer.Level, Outer.Level.HIGH),
        (str | Outer.Word, Outer.Word.SECRET),
        (Literal[1, "a"], True),
        (Literal[1], 2),
        (datetime, date(2026, 1, 1)),
        (date, datetime(2026, 1, 1)),
        (Decimal, 1),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("sNaN")),
        (UUID, str(uuid.UUID(int=1))),
        (bytes, bytearray(b"a")),
        (Position, ("a", 1)),
        (Position, Position("a", True)),
        (Position, Position("a", 1, None, [1])),  # type: ignore[arg-type]  # wrong, on purpose
        (Holder, Loose(1)),
        (Point, (1, "a")),
        (tuple[int, str], Point(1, "a")),
        (Excluding, Excluding(offset=1, password=SECRET)),
        (Annotated[int, Field(gt=0)], -1),
        (Moody, Moody.model_construct(offset=-1)),
        (Frozen, Frozen.model_construct(offset="1")),
        (Frozen, Model(offset=1)),
        (Model, {"offset": 1}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_look_alikes_are_refused(declared: Any, value: Any) -> None:
    refused(Codec(declared), value)


def test_what_a_model_or_dataclass_keeps_out_of_json_is_noticed() -> None:
    private = Private(offset=1)
    private._seen = 5
    refused(Codec(Private), private)
    late = Uncompared(1)
    object.__setattr__(late, "late", 5)
    refused(Codec(Uncompared), late)

    class Sub(Frozen):
        more: str = SECRET

    refused(Codec(Frozen), Sub(offset=1))
    assert Codec(Excluding).decode(Codec(Excluding).encode(Excluding(offset=1))) == Excluding(offset=1)


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (str | Decimal, ["1.5", Decimal("1.5"), "x"]),
        (Decimal | str, ["1.5", Decimal("1.5"), "x"]),
        (str | UUID, [str(uuid.UUID(int=1)), uuid.UUID(int=1), "x"]),
        (bytes | str, ["/w==", b"\xff", "x", b"x"]),
        (int | Outer.Level, [1, Outer.Level.LOW, 7]),
        (Outer.Word | str, [SECRET, Outer.Word.SECRET, "x"]),
        (date | str | datetime, ["2026-01-01", date(2026, 1, 1), datetime(2026, 1, 1), "2026-01-01T00:00:00"]),
        (list[int] | tuple[int, ...], [[1], (1,)]),
        (Frozen | Model, [Frozen(offset=1), Model(offset=1)]),
    ],
    ids=str,
)
def test_a_union_never_gives_back_another_of_its_types(declared: Any, values: list[Any]) -> None:
    codec, stored = Codec(declared), 0
    for value in values:
        try:
            blob = codec.encode(value)
        except CursorError as error:
            assert f"a value of type {type(value).__qualname__};" in str(error)
        else:
            assert same(codec.decode(blob), value)
            stored += 1
    assert stored


@pytest.mark.parametrize("declared", [Plain, list[Plain], dict[str, Plain], Plain | None], ids=str)
def test_a_type_that_cannot_be_stored_is_refused_when_it_is_declared(declared: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the cursor is declared .*Plain.*, which cannot be stored"):
        Codec(declared)


# -- reading ------------------------------------------------------------------------------------------------------------

GARBAGE = [
    *(b"", b" ", b"{", b"nul", b"1 2", b"\xff\xfe", b"\x80\x04N.", b"1\x00", b"\xff\xfe1\x00", b"\xef\xbb\xbf1", b"'a'", b"0x1"),
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b'"\\ud800"', b'{"\\udfff": 1}', b"9" * 5000),
    b"[" * 100_000 + b"]" * 100_000,
]
ALL_TYPES = [
    *(UNDECLARED, int, str, bool, float, list[int], datetime, Decimal, Outer.Phase, Position, Model, bytes, Point),
    Optional[int],  # noqa: UP045 - the older spelling
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda blob: repr(blob[:12]))
def test_garbage_is_an_error_and_never_none_or_a_value(garbage: bytes) -> None:
    for declared in ALL_TYPES:
        with pytest.raises(CursorError, match="the cursor cannot be read from the log: what is stored there is not"):
            Codec(declared).decode(garbage)


@given(st.binary())
def test_whatever_the_bytes_reading_gives_a_value_that_was_stored_or_an_error(blob: bytes) -> None:
    for declared in ALL_TYPES:
        codec = Codec(declared)
        try:
            value = codec.decode(blob)
        except CursorError:
            continue
        round_trip(codec, value)
        assert value is not None or blob.strip() == b"null"


@pytest.mark.parametrize(
    ("declared", "blob"),
    [
        (int, b"null"),
        (int, b"true"),
        (int, b"1.0"),
        (int, b'"1"'),
        (float, b"1"),
        (str, b"1"),
        (bool, b"1"),
        (type(None), b"0"),
        (Optional[int], b"true"),  # noqa: UP045 - the older spelling
        (Optional[int], b'"1"'),  # noqa: UP045 - the older spelling
        (Optional[int], b"1.0"),  # noqa: UP045 - the older spelling
        (list[int], b'["1"]'),
        (list[int], b"[1.0]"),
        (list[int], b"[true]"),
        (list[int], b"null"),
        (dict[str, int], b"[]"),
        (tuple[int, ...], b'{"0": 1}'),
        (datetime, b"1767225600"),
        (datetime, b"null"),
        (date, b"20454"),
        (timedelta, b"5"),
        (Outer.Phase, b'"gone"'),
        (Outer.Level, b'"1"'),
        (UUID, b"5"),
        (Position, b'{"shard": "a"}'),
        (Position, b'{"shard": "a", "offset": "1"}'),
        (Position, b'["a", 1]'),
        (Model, b'{"offset": 1.0}'),
        (Moody, b'{"offset": -1}'),
        (Literal[1], b"2"),
        (bytes, b'"not base64!"'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_stored_as_another_type_is_an_error_and_never_converted(declared: Any, blob: bytes) -> None:
    with pytest.raises(CursorError, match="what is stored there is not") as caught:
        Codec(declared).decode(blob)
    assert SECRET not in str(caught.value)


def test_reading_runs_nothing_that_is_stored(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Payload:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {marker}",)

    for blob in (
        pickle.dumps(Payload()),
        json.dumps({"__reduce__": ["os.system", f"touch {marker}"], "py/object": "os.system"}).encode(),
    ):
        for declared in ALL_TYPES:
            if declared is UNDECLARED and blob.startswith(b"{"):
                assert Codec().decode(blob) == json.loads(blob)
            else:
                with pytest.raises(CursorError):
                    Codec(declared).decode(blob)
    assert not marker.exists()


# -- values that change -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared", [UNDECLARED, Any, object, list[int], dict, dict[str, int], Model, Loose, Holder, Bag, FrozenHolder]
)
def test_a_value_of_a_type_that_can_change_is_fixed_at_once(declared: Any) -> None:
    assert declared is UNDECLARED or not immutable(declared)
    codec = Codec(declared)
    value: Any = {
        list[int]: [1],
        dict[str, int]: {"a": 1},
        Model: Model(offset=1),
        Loose: Loose(1, [1]),
        Holder: Holder(Loose(1)),
        Bag: Bag([1]),
        FrozenHolder: FrozenHolder(seen=[1]),
    }.get(declared, {"a": [1]})
    before = codec.encode(value)
    assert codec.fix is not None
    fixed = codec.fix(value)
    match value:
        case list():
            value.append(2)
        case dict():
            value["a"] = 2
        case Model() | Loose():
            value.offset = 2
        case Holder():
            value.inner.offset = 2
        case Bag():
            value.items.append(2)
        case FrozenHolder():
            value.seen.append(2)
    assert codec.encode(value) != before
    assert codec.encode(fixed) == before


@pytest.mark.parametrize(
    "declared",
    [
        *(int, float, str, bytes, bool, type(None), Decimal, datetime, date, time, timedelta, UUID, Fraction),
        *(Outer.Phase, Outer.Level, Position, Point, Frozen, Literal["a"], Annotated[int, Field(gt=0)], Uncompared),
        *(Optional[int], int | str | None, tuple[int, ...], tuple[int, tuple[str, Position]], frozenset[str]),  # noqa: UP045 - the older spelling
    ],
    ids=str,
)
def test_a_value_that_cannot_change_is_kept_as_it_is_until_the_window_closes(declared: Any) -> None:
    assert immutable(declared)
    assert Codec(declared).fix is None


@pytest.mark.parametrize(
    "declared",
    [
        *(list, dict, set, tuple, list[int], tuple[list[int], ...], tuple[Any, ...], Optional[list[int]], int | Model),  # noqa: UP045 - the older spelling
        *(frozenset[Holder], Annotated[list[int], "x"], Model, Loose, Holder, Bag, FrozenHolder, Any, object, Offset, "int"),
    ],
    ids=str,
)
def test_nothing_counts_as_immutable_that_holds_something_mutable(declared: Any) -> None:
    assert not immutable(declared)


def test_atoms_are_not_encoded_to_be_fixed_and_what_is_encoded_is_not_encoded_again() -> None:
    fix = Codec().fix
    assert fix is not None
    for atom in (None, True, 5, 1.5, "a"):
        assert fix(atom) is atom
    fixed = fix([1])
    assert type(fixed) is Encoded
    assert Codec().encode(fixed) is fixed
    refused(Codec(), b"[1]")
    with pytest.raises(CursorError):
        fix({1})


@given(JSON, JSON)
def test_same_means_equal_with_the_same_types_all_the_way_down(left: Any, right: Any) -> None:
    assert same(left, right) == (left == right and json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)) or (
        _signed_zero(left) or _signed_zero(right)
    )
    assert native(left)


def _signed_zero(value: Any) -> bool:
    return "-0.0" in json.dumps(value)
