"""What fields exist, read from the models: for help, overrides, near misses, schema and docs.

Owns: walking the models by dotted path, the words for a field's type and default.
Must not know: values, files.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from airyard.spec.fields import Origin, Shown
from airyard.spec.models import Block, WorkloadFile


class Shape(Enum):
    """How a field's value is built."""

    BLOCK = "block"
    BLOCKS = "list of blocks"
    LIST = "list"
    TEXT_MAP = "map of text"
    FREE_MAP = "map of anything"
    VALUE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One field: what it is called, what it takes, what it means."""

    path: tuple[str, ...]
    """Names from the top; a list of blocks adds ``[]`` to its name: ``("containers[]", "name")``."""
    type_text: str
    required: bool
    default: str
    description: str
    origin: Origin
    shape: Shape
    model: type[Block] | None
    examples: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The key as it stands in the file."""
        return self.path[-1].removesuffix("[]")

    @property
    def dotted(self) -> str:
        """The path as people write it."""
        return ".".join(self.path)


@cache
def fields_of(model: type[Block], prefix: tuple[str, ...] = ()) -> tuple[Entry, ...]:
    """Return the fields of one block in the order of the models."""
    return tuple(_entry(name, info, prefix) for name, info in model.model_fields.items())


def keys_of(model: type[Block]) -> tuple[str, ...]:
    """Return the keys a block takes."""
    return tuple(entry.name for entry in fields_of(model))


def every_field(model: type[Block] = WorkloadFile, prefix: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Walk all fields, each before those inside it."""
    for entry in fields_of(model, prefix):
        yield entry
        if entry.model is not None:
            yield from every_field(entry.model, entry.path)


def model_at(path: Sequence[str | int]) -> type[Block] | None:
    """Return the block at a path of a file (list indexes included); None when there is no block."""
    model: type[Block] | None = WorkloadFile
    for part in path:
        if isinstance(part, int):
            continue
        entry = next((entry for entry in fields_of(model) if entry.name == part), None) if model else None
        model = entry.model if entry else None
    return model


def elsewhere(key: str, path: Sequence[str | int]) -> str | None:
    """Return where a key that is unknown at ``path`` would be right, when there is exactly one such place."""
    here = ".".join(str(part) for part in path)
    places = [
        entry.dotted
        for entry in every_field()
        if entry.name == key and entry.origin is not Origin.OLDER and "[]" not in entry.dotted
    ]
    places = [place for place in places if place.rpartition(".")[0] != here]
    return places[0] if len(places) == 1 else None


def _entry(name: str, info: FieldInfo, prefix: tuple[str, ...]) -> Entry:
    shape, model, type_text = _describe(_annotated(info))
    key = info.alias or name
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    default = extra.get("x-airyard-default")
    return Entry(
        path=(*prefix, f"{key}[]" if shape is Shape.BLOCKS else key),
        type_text=type_text,
        required=info.is_required(),
        default="" if info.is_required() else str(default or "none"),
        description=info.description or "",
        origin=Origin(extra.get("x-airyard-origin", Origin.AIR.value)),
        shape=shape,
        model=model,
        examples=tuple(info.examples or ()),
    )


def _annotated(info: FieldInfo) -> Any:
    """Put back together what pydantic took apart: a field's annotation and its own metadata."""
    if any(isinstance(item, Shown) for item in info.metadata):
        return Annotated[info.annotation, next(item for item in info.metadata if isinstance(item, Shown))]
    return info.annotation


def _describe(annotation: Any) -> tuple[Shape, type[Block] | None, str]:
    """Return shape, block and words of a type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *metadata = get_args(annotation)
        shape, model, text = _describe(base)
        shown = next((item.text for item in metadata if isinstance(item, Shown)), None)
        return shape, model, shown or text
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return _describe(parts[0]) if len(parts) == 1 else (Shape.VALUE, None, "value")
    if origin is list:
        _, model, text = _describe(get_args(annotation)[0])
        if model is not None:
            return Shape.BLOCKS, model, "list of maps"
        return Shape.LIST, None, f"list of {text.partition(':')[0].replace('number', 'numbers')}"
    if origin is dict:
        value = get_args(annotation)[1]
        if value is Any:
            return Shape.FREE_MAP, None, "map of anything"
        return Shape.TEXT_MAP, None, f"map of text to {_describe(value)[2]}"
    if origin is Literal:
        return Shape.VALUE, None, "one of " + ", ".join(str(item) for item in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return Shape.BLOCK, annotation, "map"
    words = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return Shape.VALUE, None, words.get(annotation, "value")
