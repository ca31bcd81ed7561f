"""Reads the limits of health checks: the packaged ones, and a site's own over them.

Owns: the file's form, and which generation a GPU is of. Must not know: what a limit is for.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from airyard.checks.contract import Thresholds
from airyard.core.errors import UserError

VERSION = 1
_GENERATIONS = re.compile(r"\b(GB300|B300|GB200|B200|GH200|H200|H100|H800|A100|A800)\b", re.IGNORECASE)
_SAME = {"GB300": "B300", "GB200": "B200", "H800": "H100", "A800": "A100"}
_ONE_SOCKET = re.compile(r"PCIe|NVL\b", re.IGNORECASE)
"""Boards of their own in a slot: no NVSwitch, and fewer links or none."""

Table = dict[str, dict[str, tuple[float, str]]]


def generation_of(product: str) -> str:
    """Return the generation of a GPU by its product name, empty for one without limits of its own."""
    found = _GENERATIONS.search(product)
    if found is None or _ONE_SOCKET.search(product):
        return ""
    name = found[1].upper()
    return _SAME.get(name, name)


def packaged() -> Table:
    """Return the limits that come with Airyard."""
    text = files("airyard.checks").joinpath("data/thresholds.toml").read_text("utf-8")
    return parse(text, "thresholds.toml")


def parse(text: str, name: str) -> Table:
    """Read a file of limits. Raises: UserError that names file, table and key."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _refusal(name, str(error)) from None
    version = data.pop("version", None)
    if version != VERSION:
        raise _refusal(name, f"its version is {version!r}; this release reads {VERSION}")
    return {group: _group(name, group, values) for group, values in data.items()}


def _group(name: str, group: str, values: Any) -> dict[str, tuple[float, str]]:
    if not isinstance(values, Mapping):
        raise _refusal(name, f"{group} is no table")
    read: dict[str, tuple[float, str]] = {}
    for key, given in values.items():
        value, source = (
            (given.get("value"), given.get("source")) if isinstance(given, Mapping) else (given, "site")
        )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refusal(name, f"[{group}] {key} is no number: {value!r}")
        if value < 0:
            raise _refusal(name, f"[{group}] {key} is below zero: {value}")
        read[key] = (float(value), str(source or "site"))
    return read


def merged(base: Table, own: Table, name: str) -> Table:
    """Put a site's own limits over others. Raises: UserError for a key that no check asks for."""
    known = {key for group in base.values() for key in group}
    for group, values in own.items():
        for key in values:
            if key not in known:
                raise _refusal(name, f"[{group}] {key}: no check asks for it")
    groups = {**base, **{group: {} for group in own if group not in base}}
    return {group: {**values, **own.get(group, {})} for group, values in groups.items()}


def load(own: Path | None = None) -> Table:
    """Return the packaged limits, with those of a file over them. Raises: UserError naming file and key."""
    if own is None:
        return packaged()
    try:
        text = own.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(str(own), f"it cannot be read: {error}") from None
    return merged(packaged(), parse(text, str(own)), str(own))


def limits(table: Table, generation: str) -> Thresholds:
    """Return the limits for one generation."""
    chosen = {**table.get("all", {}), **table.get(generation, {})}
    return Thresholds(
        values={key: value for key, (value, _) in chosen.items()},
        sources={key: source for key, (_, source) in chosen.items()},
        generation=generation,
    )


def _refusal(name: str, why: str) -> UserError:
    return UserError(
        f"the limits in {name} cannot be used: {why}",
        code="BAD_THRESHOLDS",
        fix="Write `[all]` or `[H100]`, and below it `name = 12`; docs/health.md lists the names.",
    )
