"""``airyard admin``: housekeeping of the server."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, VerbGroup, pass_app
from airyard.cli.exit_codes import ExitCode


@click.group("admin", cls=VerbGroup)
def command() -> None:
    """Clean up, and check the journal."""


@command.command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@pass_app
def gc(app: App, dry_run: bool) -> None:
    """Remove what retention no longer keeps: code, logs, environments, scratch, ended runs."""
    found = app.client.gc(dry_run=dry_run)
    if app.as_json:
        app.console.data(found)
        return
    word = "would be removed" if dry_run else "removed"
    rows = [[kind, part["count"], formats.size(part["bytes"])] for kind, part in _kinds(found).items()]
    if rows:
        app.console.text(formats.table(("KIND", "COUNT", "SIZE"), rows, right=(1, 2)))
    app.console.text(f"{formats.size(sum(part['bytes'] for part in _kinds(found).values()))} {word}")
    for failure in found.get("failed") or ():
        app.console.note(f"left: {failure}", "yellow")


@command.command("verify")
@pass_app
def verify(app: App) -> int:
    """Replay the journal and compare it with the live state and the read tables."""
    found = app.client.verify()
    differences = found.get("differences") or []
    if app.as_json:
        app.console.data(found)
    else:
        for difference in differences:
            app.console.text(str(difference))
        what = f"{formats.plural(found['events'], 'event')} ({found['first_seq']} to {found['last_seq']})"
        state = formats.plural(len(differences), "difference") if differences else "no difference"
        app.console.text(f"{what}, {formats.plural(found['runs'], 'run')}: {state}")
    return ExitCode.PLATFORM if differences else ExitCode.SUCCESS


def _kinds(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    kinds = {**(found.get("kinds") or {}), "environments": found.get("environments") or {}}
    return {
        kind: {"count": part.get("count") or 0, "bytes": part.get("bytes") or 0}
        for kind, part in kinds.items()
        if part.get("count")
    }
