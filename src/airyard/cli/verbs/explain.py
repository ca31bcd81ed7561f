"""``airyard explain``: why a run is where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb


@verb("explain")
@click.argument("ref", metavar="ID")
def command(app: App, ref: str) -> None:
    """Say why a run waits, or failed, with the evidence and what would help."""
    found = app.client.explain(ref)
    if app.as_json:
        app.console.data(found)
        return
    fix = found.get("fix")
    evidence = found.get("evidence") or {}
    pairs: list[tuple[str, object]] = [
        ("run", f"{found.get('run_id')}  {found.get('state')}"),
        ("reason", found.get("reason")),
        ("", found.get("message")),
        ("position", found.get("position")),
        *_facts(evidence, {found.get("reason"), found.get("message")}),
        ("next", fix.get("text") if isinstance(fix, dict) else fix),
    ]
    app.console.text(formats.fields(pairs))


def _facts(evidence: dict[str, Any], said: set[object]) -> Iterator[tuple[str, object]]:
    """Yield the evidence that says something new."""
    for key, value in evidence.items():
        if key != "next_step" and value is not None and (isinstance(value, list | dict) or value not in said):
            yield str(key).replace("_", " "), _value(value)


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(item)}" for key, item in value.items())
    return str(value)
