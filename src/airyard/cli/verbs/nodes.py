"""``airyard nodes``: the nodes and their devices, one of them, and the word that one is dead."""

from __future__ import annotations

import click

from airyard.cli import node_text
from airyard.cli.app import App, VerbGroup, pass_app
from airyard.cli.verbs import confirm_dead


class Nodes(VerbGroup):
    """A group in which a word that is no verb is the name of a node."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; ``airyard nodes n1`` shows that node."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            return "show", self.commands["show"], args
        return super().resolve_command(ctx, args)


@click.group("nodes", cls=Nodes, invoke_without_command=True, subcommand_metavar="[NAME | confirm-dead NAME]")
@pass_app
def command(app: App) -> None:
    """List the nodes: type, pool, state, labels, what is free, what each device does; or show one by its NAME.

    `airyard cordon`, `uncordon` and `drain` change what state they are in (docs/operate/nodes.md).
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    nodes = app.client.nodes()
    if app.as_json:
        app.console.data({"nodes": nodes})
        return
    if not nodes:
        app.console.note("No nodes yet: no machine has reported. `airyard status` shows more.")
        return
    app.console.text(node_text.listing(nodes, app.console.colour_out))


@command.command("show", hidden=True)
@click.argument("name", metavar="NAME")
@pass_app
def show(app: App, name: str) -> None:
    """Show one node: who closed it and why, its devices, the runs on it."""
    found = app.client.node(name)
    if app.as_json:
        app.console.data(found)
    else:
        app.console.text(node_text.page(found, app.console.colour_out))


command.add_command(confirm_dead.command)
