"""`--override a.b.c=VALUE`: one value of the file replaced from the command line.

Owns: parsing an override, checking its path against the fields that exist, setting the value.
Must not know: whether the value is right (the models judge it like any other).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airyard.spec.catalogue import Shape, elsewhere, fields_of
from airyard.spec.document import Document, parse_value
from airyard.spec.models import Block, WorkloadFile
from airyard.spec.problems import FieldPath, Position, Problem, ProblemCode, dotted_path, near_miss


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One parsed override."""

    text: str
    keys: tuple[str, ...]
    value: Any
    raw: str


def apply_overrides(document: Document, overrides: Sequence[str]) -> tuple[Document, list[Problem]]:
    """Return a copy of the document with every override set, in order; missing blocks are created."""
    out = Document(
        data=copy.deepcopy(document.data), positions=dict(document.positions), raw=dict(document.raw)
    )
    problems: list[Problem] = []
    for text in overrides:
        try:
            override = parse_override(text)
            _set(out, override)
        except _Refused as error:
            problems.append(error.problem)
    return out, problems


def parse_override(text: str) -> Override:
    """Split ``a.b=VALUE`` and read VALUE as YAML. Raises: _Refused."""
    path, equals, raw = text.partition("=")
    keys = tuple(path.strip().removeprefix("config.").split("."))
    if not equals or not all(keys):
        raise _Refused(
            text, (), ProblemCode.INVALID_OVERRIDE, "an override reads PATH=VALUE, as in max_retries=0"
        )
    try:
        value = parse_value(raw)
    except ValueError as error:
        raise _Refused(text, keys, ProblemCode.INVALID_OVERRIDE, f"the value is not YAML: {error}") from None
    return Override(text=text, keys=keys, value=value, raw=raw.strip())


class _Refused(Exception):
    """An override that cannot be applied; carries the problem."""

    def __init__(
        self,
        text: str,
        path: FieldPath,
        code: ProblemCode,
        message: str,
        near: str | None = None,
        valid: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.problem = Problem(
            code=code,
            path=dotted_path(path),
            message=message,
            position=Position(file=f"--override {text}"),
            near_miss=near,
            valid_keys=valid,
        )


def _set(document: Document, override: Override) -> None:
    """Walk down the models and the data together, then set the value."""
    model: type[Block] | None = WorkloadFile
    shape = Shape.BLOCK
    target: Any = document.data
    path: FieldPath = ()
    for depth, key in enumerate(override.keys):
        last = depth == len(override.keys) - 1
        part: str | int = key
        if isinstance(target, list):
            part = _index(override, path, target, key)
        elif model is not None:
            shape, model = _field(override, path, model, key)
        elif shape is Shape.TEXT_MAP:
            part, last = ".".join(override.keys[depth:]), True  # a tag or variable may have dots in its name
        elif shape is not Shape.FREE_MAP:
            raise _Refused(
                override.text,
                path,
                ProblemCode.INVALID_OVERRIDE,
                "holds one value, nothing below it can be set",
            )
        path = (*path, part)
        if last:
            in_text_map = shape is Shape.TEXT_MAP and model is None and depth > 0
            target[part] = _value(override, text=in_text_map)
            _forget_below(document, path, override)
            return
        target = _descend(document, override, target, part, path)


def _value(override: Override, *, text: bool) -> Any:
    """On a command line ``env_variables.SEED=8`` can only mean the text 8."""
    plain = isinstance(override.value, bool | int | float) or override.value is None
    return override.raw if text and plain else override.value


def _field(
    override: Override, path: FieldPath, model: type[Block], key: str
) -> tuple[Shape, type[Block] | None]:
    entries = {entry.name: entry for entry in fields_of(model)}
    if key in entries:
        return entries[key].shape, entries[key].model
    valid = tuple(entries)
    near = near_miss(key, valid) or elsewhere(key, path)
    raise _Refused(override.text, (*path, key), ProblemCode.UNKNOWN_FIELD, "unknown field", near, valid)


def _index(override: Override, path: FieldPath, target: list[Any], key: str) -> int:
    if key.isdecimal() and int(key) < len(target):
        return int(key)
    raise _Refused(
        override.text,
        path,
        ProblemCode.INVALID_OVERRIDE,
        f"is a list of {len(target)}; {key!r} is not an index of it (from 0)",
    )


def _descend(document: Document, override: Override, target: Any, part: str | int, path: FieldPath) -> Any:
    below = target.get(part) if isinstance(target, dict) else target[part]
    if isinstance(below, dict | list):
        return below
    target[part] = {}
    _forget_below(document, path, override)
    return target[part]


def _forget_below(document: Document, path: FieldPath, override: Override) -> None:
    """Positions and raw text of what was replaced give way to the override's."""
    length = len(path)
    for known in [known for known in document.positions if known[:length] == path]:
        del document.positions[known]
    for known in [known for known in document.raw if known[:length] == path]:
        del document.raw[known]
    document.positions[path] = Position(file=f"--override {override.text}")
    document.raw[path] = override.raw
