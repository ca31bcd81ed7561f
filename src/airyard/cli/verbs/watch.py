"""``airyard watch``: the stream and exit code of ``run --watch`` for a run that exists."""

from __future__ import annotations

import click

from airyard.cli import watching
from airyard.cli.app import App, verb


@verb("watch")
@click.argument("ref", metavar="ID")
@click.option("--propagate", is_flag=True, help="Exit with the command's own exit code.")
@click.option("--no-logs", is_flag=True, help="Status only.")
def command(app: App, ref: str, propagate: bool, no_logs: bool) -> int:
    """Follow a run to its end and exit as it did. Ctrl-C leaves the run alive."""
    run = app.client.get(ref)
    return watching.watch(app.client, app.console, run, propagate=propagate, with_logs=not no_logs)
