"""``airyard rm``: remove ended runs."""

from __future__ import annotations

import click

from airyard.cli import formats
from airyard.cli.app import App, confirm, verb


@verb("rm")
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(app: App, refs: tuple[str, ...], yes: bool) -> None:
    """Remove ended runs: their logs, their tracking, and their code where no other run uses it."""
    if not yes and app.as_json:
        raise click.UsageError("With -o json nobody is asked; -y goes ahead without asking.")
    if not yes:
        confirm(f"Remove run {', '.join(refs)} with its logs and tracking, for good?")
    removed = []
    for ref in refs:
        answer = app.client.delete(ref)
        removed.append({"ref": ref, **answer})
        if not app.as_json:
            freed = f", {formats.size(answer['log_bytes'])} of logs" if answer.get("log_bytes") else ""
            app.console.text(f"run {answer.get('run_id', ref)} is removed{freed}")
            for left in answer.get("left") or ():
                app.console.note(f"left behind: {left}", "yellow")
    if app.as_json:
        app.console.data({"removed": removed})
