"""`airyard run -h config[.path]`: what a field takes, from the models.

Owns: the text of field help.
Must not know: colours, terminals.
"""

from __future__ import annotations

import textwrap

from airyard.core.errors import NotFound
from airyard.spec.catalogue import Entry, Shape, elsewhere, fields_of, keys_of
from airyard.spec.fields import Origin
from airyard.spec.models import Block, WorkloadFile
from airyard.spec.problems import near_miss

ROOT = "config"
_WIDTH = 100


def field_help(path: str = ROOT) -> str:
    """Return the help of one field, or of the whole file for ``config``.

    Raises: NotFound with the near miss and the fields of that level.
    """
    keys = [part.removesuffix("[]") for part in path.strip().split(".") if part]
    if keys and keys[0] == ROOT:
        keys = keys[1:]
    keys = [key for key in keys if not key.isdecimal()]
    if not keys:
        doc = (WorkloadFile.__doc__ or "").strip()
        return "\n".join([f"{ROOT}: {doc}", "", *_children(WorkloadFile)])
    return _entry_help(_find(keys))


def _find(keys: list[str]) -> Entry:
    """Walk down by key. Raises: NotFound."""
    model: type[Block] | None = WorkloadFile
    prefix: tuple[str, ...] = ()
    entry: Entry | None = None
    for depth, key in enumerate(keys):
        if model is None:
            raise _nothing_below(keys, depth, entry)
        entry = next((item for item in fields_of(model, prefix) if item.name == key), None)
        if entry is None:
            raise _unknown(keys, depth, model)
        model, prefix = entry.model, entry.path
    assert entry is not None
    return entry


def _unknown(keys: list[str], depth: int, model: type[Block]) -> NotFound:
    here = ".".join((ROOT, *keys[:depth]))
    near = near_miss(keys[depth], keys_of(model))
    place = elsewhere(keys[depth], keys[:depth]) if near is None else None
    guess = f"{here}.{near}" if near else f"{ROOT}.{place}" if place else None
    question = f'; did you mean "{guess}"?' if guess else "."
    return NotFound(
        f"{here} has no field {keys[depth]!r}{question} Its fields: {', '.join(keys_of(model))}",
        code="UNKNOWN_FIELD",
        fix=f"`airyard run -h {guess or here}`",
        details={"near_miss": guess, "valid_keys": list(keys_of(model))},
    )


def _nothing_below(keys: list[str], depth: int, entry: Entry | None) -> NotFound:
    here = ".".join((ROOT, *keys[:depth]))
    what = entry.type_text if entry else "value"
    return NotFound(
        f"{here} takes {what}: it has no fields of its own",
        code="UNKNOWN_FIELD",
        fix=f"`airyard run -h {here}`",
    )


def _entry_help(entry: Entry) -> str:
    lines = [f"{ROOT}.{entry.dotted}", ""]
    lines += textwrap.wrap(entry.description, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", f"  type      {entry.type_text}", f"  required  {'yes' if entry.required else 'no'}"]
    if not entry.required:
        lines.append(f"  default   {entry.default}")
    if entry.examples:
        lines.append(f"  example   {', '.join(shown(example) for example in entry.examples)}")
    if entry.origin is not Origin.AIR:
        lines.append(f"  origin    {entry.origin.value}")
    if entry.model is not None:
        lines += ["", *_children(entry.model)]
    elif entry.shape in (Shape.TEXT_MAP, Shape.FREE_MAP):
        lines += ["", "  The names below it are yours to choose."]
    return "\n".join(lines)


def _children(model: type[Block]) -> list[str]:
    """One line a field: name, type, whether it is required; older spellings last."""
    entries = sorted(fields_of(model), key=lambda entry: entry.origin is Origin.OLDER)
    width = max(len(entry.name) for entry in entries)
    lines = ["Fields (* required):"]
    for entry in entries:
        mark = "*" if entry.required else " "
        note = f"  [{entry.origin.value}]" if entry.origin is not Origin.AIR else ""
        lines.append(f" {mark}{entry.name:<{width}}  {entry.type_text}{note}")
    return lines


def shown(value: object) -> str:
    """Write an example as it would stand in YAML on one line."""
    if isinstance(value, list):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    text = str(value)
    return f'"{text}"' if isinstance(value, str) and (" " in text or text == ".") else text
