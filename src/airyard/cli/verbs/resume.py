"""``airyard resume``: a new attempt of an ended run."""

from __future__ import annotations

import click

from airyard.cli import watching
from airyard.cli.app import App, verb


@verb("resume")
@click.argument("ref", metavar="ID")
@click.option("-w", "--watch", "watched", is_flag=True, help="Follow it to its end and exit as it did.")
def command(app: App, ref: str, watched: bool) -> int:
    """Start a new attempt of an ended run: same id, same code, same checkpoints."""
    run = app.client.resume(ref)
    if app.as_json and not watched:
        app.console.data({"run": run})
    elif not app.as_json:
        app.console.note(f"run {run['run_id']} goes on with a new attempt")
    return watching.watch(app.client, app.console, run) if watched else 0
