"""``airyard uncordon``: open nodes again."""

from __future__ import annotations

import click

from airyard.cli import node_text
from airyard.cli.app import App, verb


@verb("uncordon")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
def command(app: App, nodes: tuple[str, ...]) -> None:
    """Open nodes again and call a drain of them off; runs that have been asked to leave still do."""
    answer = app.client.uncordon(nodes)
    if app.as_json:
        app.console.data(answer)
    else:
        app.console.text("\n".join(node_text.operated(answer)))
