"""What a task's class declares about its types."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from typing import Any, TypeVar

from cano.errors import ConfigurationError


def type_argument(thing: object, base: type, index: int) -> Any:
    """The `index`-th type argument that an object's class gives to its generic ancestor `base`: a type, or None if it
    gives none.

    The argument may also be given when the object is made: `Kind[int]()`.

    Raises:
        ConfigurationError: it is a name in quotes that cannot be found.
    """
    kind = type(thing)
    made = getattr(thing, "__orig_class__", None)
    arguments = _arguments(kind, base) or (kind.__parameters__ if kind is base else None)  # type: ignore[attr-defined]  # every generic class has them
    if arguments is None or index >= len(arguments):
        return None
    found = arguments[index]
    if isinstance(found, TypeVar) and made is not None:
        found = dict(zip(kind.__parameters__, typing.get_args(made), strict=False)).get(found, found)  # type: ignore[attr-defined]  # every generic class has them
    if isinstance(found, TypeVar) or found is Any:
        return None
    if isinstance(found, typing.ForwardRef | str):
        name = found if isinstance(found, str) else found.__forward_arg__
        found = _evaluate(name, vars(sys.modules[kind.__module__]))
        if found is None:
            raise ConfigurationError(
                f"{kind.__name__} declares the type {name!r}, which is not found in its module: give the type itself"
            )
    return type(None) if found is None else found


def _arguments(kind: type, base: type) -> tuple[Any, ...] | None:
    bases: tuple[Any, ...] = vars(kind).get("__orig_bases__", kind.__bases__)
    for generic in bases:
        origin, given = typing.get_origin(generic), typing.get_args(generic)
        if origin is base:
            return given
        ancestor = origin or generic
        if not (isinstance(ancestor, type) and issubclass(ancestor, base)) or ancestor is base:
            continue
        inherited = _arguments(ancestor, base)
        if inherited is not None:
            names = dict(zip(getattr(ancestor, "__parameters__", ()), given, strict=False))
            return tuple(names.get(argument, argument) if isinstance(argument, TypeVar) else argument for argument in inherited)
    return None


def returned_pair(hook: Any) -> Any:
    """The second type of a hook annotated `-> tuple[X, Y]`; None if it is not annotated so, or a name cannot be
    found.
    """
    annotation = _annotation(hook, "return")
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is not tuple or len(arguments) != 2 or arguments[1] is Ellipsis:
        return None
    return _definite(arguments[1])


def optional_parameter(hook: Any, name: str) -> Any:
    """The type of a hook's parameter annotated `X | None`, without the None; None if it is not annotated so."""
    annotation = _annotation(hook, name)
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return None
    kept = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    return _definite(typing.Union[tuple(kept)]) if kept else None  # noqa: UP007 - the members are known at run time only


def _annotation(hook: Any, name: str) -> Any:
    hook = inspect.unwrap(getattr(hook, "__func__", hook))
    annotation = getattr(hook, "__annotations__", {}).get(name)
    return _evaluate(annotation, getattr(hook, "__globals__", {})) if isinstance(annotation, str) else annotation


def _definite(found: Any) -> Any:
    return None if found is Any or found is object or isinstance(found, TypeVar) else found


def _evaluate(text: str, names: dict[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"found": text}
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["found"]
    except Exception:
        return None
