"""Events and records as JSON trees, derived from their type annotations.

Owns: the one encoding of the journal, snapshots and read tables. Must not know: what the records mean.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from airyard.core import events
from airyard.core.errors import InvariantBroken
from airyard.core.workload import Workload

T = TypeVar("T")
_PLAIN = frozenset({str, int, float, bool, type(None)})


def encode(value: Any) -> Any:
    """Turn a frozen record into what ``json.dumps`` takes. Fields that hold their default are left out.

    Cost: every commit encodes each run that it changed, with all its members.
    """
    kind: Any = type(value)
    return value if kind in _PLAIN else _encoder(kind)(value)


@cache
def _encoder(kind: type) -> Callable[[Any], Any]:
    """Return how values of a type are encoded; asked once a type, because asking costs more than most encodings."""
    if issubclass(kind, Workload):
        return Workload.to_json
    if is_dataclass(kind):
        return _encode_record
    if issubclass(kind, Enum):
        return _value_of
    if issubclass(kind, tuple | list):
        return lambda value: [encode(item) for item in value]
    if issubclass(kind, Mapping):
        return lambda value: {str(key): encode(item) for key, item in value.items()}
    return lambda value: value


def _value_of(value: Enum) -> Any:
    return value.value


def _encode_record(value: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    record: Any = type(value)
    for name, default in _defaults(record):
        item = getattr(value, name)
        if item is not default and (default is MISSING or item != default):
            kind: Any = type(item)
            out[name] = item if kind in _PLAIN else _encoder(kind)(item)
    return out


@cache
def _defaults(cls: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in fields(cls))


def decode(cls: type[T], data: Any) -> T:
    """Rebuild a record of ``cls`` from ``encode``'s tree; unknown keys are ignored, so that N reads N+1.

    Raises: InvariantBroken when the tree does not fit the type.
    """
    try:
        return typing.cast(T, _decoder(typing.cast(Any, cls))(data))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvariantBroken(
            f"a stored {cls.__name__} cannot be read: {error!r}", code="BAD_RECORD"
        ) from error


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    origin = typing.get_origin(kind)
    if kind is Workload:
        return Workload.from_json
    if isinstance(kind, type) and is_dataclass(kind):
        return _record_decoder(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if origin is tuple:
        return _tuple_decoder(typing.get_args(kind))
    if origin in (typing.Union, types.UnionType):
        return _optional_decoder(typing.get_args(kind))
    if origin is not None and issubclass(origin, Mapping):
        return dict
    return lambda value: value


def _record_decoder(cls: type) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(cls)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(cls)}

    def build(data: Mapping[str, Any]) -> Any:
        return cls(**{name: decoders[name](item) for name, item in data.items() if name in decoders})

    return build


def _tuple_decoder(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _decoder(arguments[0])
        return lambda values: tuple(item(value) for value in values)
    items = [_decoder(argument) for argument in arguments]
    return lambda values: tuple(item(value) for item, value in zip(items, values, strict=True))


def _optional_decoder(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) != 1:
        return lambda value: value
    inner = _decoder(others[0])
    return lambda value: None if value is None else inner(value)


EVENT_TYPES: dict[str, type] = {cls.__name__: cls for cls in typing.get_args(events.Event)}


def encode_event(event: events.Event) -> tuple[str, dict[str, Any]]:
    """Return an event's kind and its JSON tree."""
    return type(event).__name__, _encode_record(event)


def decode_event(kind: str, data: Mapping[str, Any]) -> events.Event:
    """Rebuild an event. Raises: InvariantBroken for a kind this version does not know, or a bad tree."""
    cls = EVENT_TYPES.get(kind)
    if cls is None:
        raise InvariantBroken(
            f"the journal holds an event {kind!r} that this version does not know",
            code="UNKNOWN_EVENT",
            fix="start the version of Airyard that wrote this journal, or a newer one",
        )
    return typing.cast(events.Event, decode(cls, data))
