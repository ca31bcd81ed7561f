"""Reads the limits of health checks: the packaged ones, and a site's own over them.

Owns: the file's form, and which generation a GPU is of. Must not know: what a limit is for.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from airyard.checks.contract import Thresholds
from airyard.checks.limit import OF_POOL, SITE
from airyard.core.errors import UserError
from airyard.core.health.limit_names import EVERYWHERE, NAMES, TABLES, wrong_with
from airyard.core.plain import LINE, plain, plain_name

VERSION = 1
_GENERATIONS = re.compile(r"\b(GB300|B300|GB200|B200|GH200|H200|H100|H800|A100|A800|A10)\b", re.IGNORECASE)
_SAME = {"GB300": "B300", "H800": "H100", "A800": "A100"}
_ONE_SOCKET = re.compile(r"PCIe|NVL\b", re.IGNORECASE)
"""Boards of their own in a slot: no NVSwitch, and fewer links or none."""

_MOST_BYTES = 1 << 20

_FORM = "Write `[all]` or `[H100]`, and below it `name = 12`; docs/health.md lists the names."

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
    except (ValueError, RecursionError) as error:
        raise _refusal(name, plain(str(error))) from None
    version = data.pop("version", None)
    if version != VERSION:
        said = (
            "it does not say its version"
            if version is None
            else f"its version is {plain(repr(version), LINE)}"
        )
        raise _refusal(
            name,
            f"{said}; this release reads {VERSION}",
            f"Begin the file with the line `version = {VERSION}`, above every table.",
        )
    return {group: _group(name, text, group, values) for group, values in data.items()}


def _group(name: str, text: str, group: str, values: Any) -> dict[str, tuple[float, str]]:
    if not isinstance(values, Mapping):
        raise _refusal(name, f"{plain_name(group)} is no table{_line(text, '', group)}")
    if group not in TABLES:
        known = ", ".join(TABLES[1:])
        raise _refusal(
            name, f"[{plain_name(group)}] is neither [all] nor a generation ({known}){_line(text, group)}"
        )
    read: dict[str, tuple[float, str]] = {}
    for key, given in values.items():
        value, source = (
            (given.get("value"), given.get("source")) if isinstance(given, Mapping) else (given, SITE)
        )
        place = _line(text, group, key)
        if key not in NAMES:
            raise _refusal(name, f"[{group}] {plain_name(key)}: no check asks for it{place}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refusal(
                name, f"[{group}] {plain_name(key)} is no number: {plain(repr(value), LINE)}{place}"
            )
        if wrong := wrong_with(key, value):
            raise _refusal(name, f"[{group}] {key} is {wrong}: {plain(str(value), LINE)}{place}")
        read[key] = (float(value), str(source or SITE))
    return read


def _line(text: str, group: str, key: str = "") -> str:
    """Say on which line a table begins or a key of it stands; nothing where it is written in another way."""
    now = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        if bare.startswith("["):
            now = bare.strip("[] ").strip("\"'")
            found = not key and now == group
        else:
            found = bool(key) and now == group and bare.partition("=")[0].strip().strip("\"'") == key
        if found:
            return f" (line {number})"
    return ""


def of_pool(base: Table, tables: Any, pool: str) -> Table:
    """Put a pool's limits over others. What this release has no check for is left out: a newer server may say it.

    So is what no limit can be; ``wrong_of_pool`` names it.
    """
    own = {
        group: {
            name: (float(value), f"{OF_POOL} {pool}")
            for name, value in values.items()
            if name in NAMES and not wrong_with(name, value)
        }
        for group, values in _tables(tables)
    }
    return _over(base, own)


def wrong_of_pool(tables: Any, pool: str) -> str:
    """Say which of a pool's limits cannot be used; empty where all can."""
    wrong = [
        f"[{group}] {name} is {why}: {plain(repr(value), LINE)}"
        for group, values in _tables(tables)
        for name, value in values.items()
        if name in NAMES and (why := wrong_with(name, value))
    ]
    if not isinstance(tables, Mapping):
        wrong.append("they are no tables")
    return f"limits of pool {pool} cannot be used: {'; '.join(wrong)}" if wrong else ""


def _tables(tables: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(tables, Mapping):
        return []
    return [
        (group, values) for group, values in tables.items() if group in TABLES and isinstance(values, Mapping)
    ]


def _over(base: Table, own: Table) -> Table:
    """What the upper layer says for all goes before what the lower one says for a generation."""
    everywhere = own.get(EVERYWHERE, {})
    groups = {**base, **{group: {} for group in own if group not in base}}
    return {
        group: {
            **{name: value for name, value in values.items() if name not in everywhere},
            **own.get(group, {}),
        }
        for group, values in groups.items()
    }


def load(own: Path | None = None) -> Table:
    """Return the packaged limits, with those of a file over them. Raises: UserError naming file and key."""
    if own is None:
        return packaged()
    try:
        with open(
            os.open(own, os.O_RDONLY | os.O_NONBLOCK), "rb"
        ) as file:  # a pipe in its place must not hang
            read = file.read(_MOST_BYTES + 1)
        text = read.decode("utf-8")
    except OSError as error:
        why = f"it cannot be read: {error.strerror or error}"
        raise _refusal(str(own), why, "Check its path and its rights.") from None
    except UnicodeDecodeError as error:
        raise _refusal(str(own), f"it cannot be read: {error}") from None
    if len(read) > _MOST_BYTES:
        raise _refusal(str(own), f"it has more than {_MOST_BYTES >> 20} MiB")
    return _over(packaged(), parse(text, str(own)))


def limits(table: Table, generation: str) -> Thresholds:
    """Return the limits for one generation."""
    chosen = {**table.get(EVERYWHERE, {}), **table.get(generation, {})}
    return Thresholds(
        values={key: value for key, (value, _) in chosen.items()},
        sources={key: source for key, (_, source) in chosen.items()},
        generation=generation,
    )


def _refusal(name: str, why: str, fix: str = _FORM) -> UserError:
    return UserError(
        f"the limits in {name} cannot be used: {why}",
        code="BAD_THRESHOLDS",
        fix=fix,
    )
