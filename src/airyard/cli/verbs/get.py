"""``airyard get``: one run in full."""

from __future__ import annotations

import click

from airyard.cli import run_text
from airyard.cli.app import App, verb
from airyard.cli.exit_codes import of_run


@verb("get")
@click.argument("ref", metavar="ID")
@click.option("--exit-status", is_flag=True, help="Exit as the run ended (0 while it has not).")
@click.option("--propagate", is_flag=True, help="With --exit-status: the command's own exit code.")
def command(app: App, ref: str, exit_status: bool, propagate: bool) -> int:
    """Show one run: phases with times, attempts, nodes, failure and next step.

    ID is a number, a name, @last, or tag:KEY=VALUE.
    """
    run = app.client.get(ref)
    if app.as_json:
        app.console.data(run)
    else:
        app.console.text(run_text.page(run, colour=app.console.colour_out))
    return of_run(run, propagate=propagate) if exit_status else 0
