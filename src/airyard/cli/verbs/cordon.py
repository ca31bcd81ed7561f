"""``airyard cordon``: close nodes for new work."""

from __future__ import annotations

import click

from airyard.cli import node_text
from airyard.cli.app import App, verb


@verb("cordon")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@click.option(
    "--reason", metavar="TEXT", default="", help="Why; shown with the node and to who waits for it."
)
def command(app: App, nodes: tuple[str, ...], reason: str) -> None:
    """Close nodes: nothing new is placed on them, what runs there stays. It holds until `airyard uncordon`.

    A machine's name stands for all its nodes. One unknown name refuses all.
    """
    answer = app.client.cordon(nodes, reason=reason)
    if app.as_json:
        app.console.data(answer)
    else:
        app.console.text("\n".join(node_text.operated(answer)))
