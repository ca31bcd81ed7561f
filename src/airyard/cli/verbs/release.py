"""``airyard release``: let held runs go."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli.app import App, verb
from airyard.cli.verbs.update import change


@verb("release")
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
def command(app: App, refs: tuple[str, ...]) -> int:
    """Let held runs go: they start when it is their turn."""
    return change(app, refs, {"held": False}, heading="released", say=_said)


def _said(run: dict[str, Any], changed: list[str]) -> str:
    return f"run {run['run_id']} {'is released' if changed else 'was not held'}"
