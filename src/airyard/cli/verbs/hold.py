"""``airyard hold``: keep queued runs from starting."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli.app import App, verb
from airyard.cli.verbs.update import change


@verb("hold")
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
def command(app: App, refs: tuple[str, ...]) -> int:
    """Keep queued runs from starting until `airyard release`; they keep their place in the queue."""
    return change(app, refs, {"held": True}, heading="held", say=_said)


def _said(run: dict[str, Any], changed: list[str]) -> str:
    if not changed:
        return f"run {run['run_id']} was held already"
    return f"run {run['run_id']} is held; `airyard release {run['run_id']}` lets it go"
