"""Values to bytes and back, exactly or not at all. The one place that raises CursorError.

What is declared (a type from `StreamTask[...]`, from annotations, or `data_type=`) is encoded and validated with
pydantic; what is not declared must be JSON as it is. A value is accepted only if what would be read back is equal to
it and of the same types all the way down, so that a resumed run can never be handed a look-alike. Nothing here
imports by a stored name or runs stored code.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from cano.errors import CanoError, ConfigurationError, CursorError


class _Undeclared:
    def __repr__(self) -> str:
        return "UNDECLARED"


UNDECLARED: Final = _Undeclared()
"""Stands for a type that nobody declared."""

_ATOMS = frozenset({type(None), bool, int, float, str})
_FIXED = (
    int,
    float,
    str,
    bytes,
    bool,
    type(None),
    Decimal,
    datetime,
    date,
    time,
    timedelta,
    UUID,
    Fraction,
    complex,
    Enum,
)


class Encoded(bytes):
    """A value that is encoded already."""

    __slots__ = ()


class Codec:
    """Encodes and decodes the values of one declared type, or JSON-native ones.

    `what` names the values in errors ("the cursor of Ingest") and `remedy` says how to declare their type. `error` is
    the class raised for a value that cannot be stored or read.
    """

    def __init__(
        self,
        declared: Any = UNDECLARED,
        *,
        what: str = "the cursor",
        remedy: str = "declare its type",
        error: type[CanoError] = CursorError,
    ) -> None:
        self.declared = declared
        self._what = what
        self._remedy = remedy
        self._error = error
        self._atom = declared if any(declared is atom for atom in _ATOMS) else None
        self._adapter = None if declared is UNDECLARED or self._atom is not None else self._adapt(declared)

    @property
    def fix(self) -> Callable[[Any], Any] | None:
        """What has to be done to a value to keep it as it is now: None for types whose values cannot change, else a
        function that encodes a value at once unless it is of an immutable type.
        """
        return None if self.declared is not UNDECLARED and immutable(self.declared) else self._fix

    def _fix(self, value: Any) -> Any:
        return value if type(value) in _ATOMS else self.encode(value)

    def encode(self, value: Any) -> Encoded:
        """Encode a value.

        Raises:
            CursorError: (or the class given) it would not come back equal and of the same type. Names its type only.
        """
        if type(value) is Encoded:
            return value
        if self._atom is not None and type(value) is not self._atom:
            raise self._refused(value, f"it was declared {_name(self.declared)}")
        if self._atom is not None and not native(value):
            raise self._refused(value, "JSON has no exact form for it")
        if self._adapter is not None:
            return self._encode_declared(value)
        if not native(value):
            raise self._refused(value, f"only JSON-native values can be stored as they are; {self._remedy}")
        try:
            return _to_json(value)
        except (ValueError, RecursionError):
            raise self._refused(value, "it is too large or too deep to be written as JSON") from None

    def decode(self, blob: bytes) -> Any:
        """Decode what `encode` gave.

        Raises:
            CursorError: (or the class given) the bytes are damaged, or are not of the declared type.
        """
        try:
            if self._adapter is not None:
                return self._adapter.validate_json(blob, strict=True)
            value = json.loads(blob.decode())
        except Exception:  # a validator of the user's may raise anything
            raise self._unreadable() from None
        if not native(value) or (self._atom is not None and type(value) is not self._atom):
            raise self._unreadable()
        return value

    def _adapt(self, declared: Any) -> TypeAdapter[Any]:
        try:
            return _adapter_of(declared)
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError):
            raise ConfigurationError(
                f"{self._what} is declared {_name(declared)}, which cannot be stored: use JSON-native values, "
                "a frozen dataclass, a pydantic model, or another type that pydantic can write and read"
            ) from None

    def _encode_declared(self, value: Any) -> Encoded:
        assert self._adapter is not None
        try:
            blob = self._adapter.dump_json(value, by_alias=True, warnings="error")
            back = self._adapter.validate_json(blob, strict=True)
            exact = same(value, back)
        except Exception:
            raise self._refused(value, f"it cannot be written and read back as {_name(self.declared)}") from None
        if not exact:
            raise self._refused(value, f"it would not come back equal and of the same type ({_name(self.declared)})")
        return Encoded(blob)

    def _refused(self, value: Any, why: str) -> CanoError:
        return self._error(f"{self._what} cannot be stored: a value of type {type(value).__qualname__}; {why}")

    def _unreadable(self) -> CanoError:
        wanted = "JSON" if self.declared is UNDECLARED else _name(self.declared)
        return self._error(f"{self._what} cannot be read from the log: what is stored there is not {wanted}")


def _adapter_of(declared: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(declared, config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"))
    except PydanticUserError:  # the type has a configuration of its own
        return TypeAdapter(declared)


def _to_json(value: Any) -> Encoded:
    try:
        return Encoded(orjson.dumps(value))
    except TypeError:  # an integer beyond 64 bits, or nesting deeper than orjson goes
        return Encoded(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def native(value: Any) -> bool:
    """Whether JSON gives a value back exactly: None, bool, int, finite float, str, and lists and str-keyed dicts of
    them, of exactly these types.
    """
    try:
        return _native(value)
    except RecursionError:
        return False


def _native(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return value.isascii() or _encodable(value)
    if kind is float:
        return math.isfinite(value)
    if kind in _ATOMS:
        return True
    if kind is list:
        return all(map(_native, value))
    return kind is dict and all(type(key) is str and _native(key) and _native(item) for key, item in value.items())


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal and of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left == right and all(map(same, left, right)) and all(same(item, right[key]) for key, item in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right)) and left == right
    if isinstance(left, set | frozenset):
        return left == right and sorted(type(item).__qualname__ for item in left) == sorted(
            type(item).__qualname__ for item in right
        )
    if isinstance(left, BaseModel) or dataclasses.is_dataclass(left):
        return bool(left == right) and same(_fields(left), _fields(right))
    return bool(left == right)


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.model_extra or {}), **(value.__pydantic_private__ or {})}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def immutable(declared: Any) -> bool:
    """Whether no value of a declared type can change, so that it may be kept unencoded for a while."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (typing.Union, types.UnionType, tuple, frozenset):
        return all(argument is Ellipsis or immutable(argument) for argument in arguments)
    if origin is typing.Annotated:
        return immutable(arguments[0])
    if origin is typing.Literal:
        return True
    if not isinstance(declared, type):
        return declared is None
    if issubclass(declared, BaseModel):
        hints = [field.annotation for field in declared.model_fields.values()]
        return bool(declared.model_config.get("frozen")) and all(map(immutable, hints))
    if dataclasses.is_dataclass(declared):
        frozen = declared.__dataclass_params__.frozen  # type: ignore[attr-defined]  # typeshed leaves it out
        return frozen and all(map(immutable, _hints(declared)))
    if issubclass(declared, tuple):
        return bool(hints := _hints(declared)) and all(map(immutable, hints))
    return issubclass(declared, _FIXED)


def _hints(declared: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(declared).values())
    except NameError:
        return [Any]


def _name(declared: Any) -> str:
    return declared.__qualname__ if isinstance(declared, type) and not typing.get_args(declared) else str(declared)
