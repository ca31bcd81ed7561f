"""``airyard explain``: why a run is where it is."""

from __future__ import annotations

import click

from airyard.cli import explain_text
from airyard.cli.app import App, verb


@verb("explain")
@click.argument("ref", metavar="ID")
def command(app: App, ref: str) -> None:
    """Say why a run waits, runs or failed, with the evidence and what would help.

    Of a waiting run: its place and who is ahead, when it is expected to start, and what would let it start now. Of a
    running one: who may evict it, and what it would lose.
    """
    found = app.client.explain(ref)
    if app.as_json:
        app.console.data(found)
        return
    app.console.text(explain_text.page(found))
