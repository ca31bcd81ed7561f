"""``airyard queue``: what waits, in order, why, and until when."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from airyard.cli import explain_text, formats, run_text
from airyard.cli.app import App, verb
from airyard.cli.exit_codes import ExitCode

SHOWN = 50
EVERY_S = 2.0
CLEAR = "\x1b[H\x1b[2J"
HEAD = ("#", "ID", "NAME", "COMPUTE", "PRIORITY", "SUBMITTED", "STARTS", "WAITS FOR")


@verb("queue")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=SHOWN, help=f"At most so many ({SHOWN}).")
@click.option("--all", "everything", is_flag=True, help="No limit.")
@click.option("-w", "--watch", "watched", is_flag=True, help="Show it again whenever it changes.")
def command(app: App, limit: int, everything: bool, watched: bool) -> int:
    """Show the waiting runs in the order they are considered, each with its expected start and its reason."""
    size = None if everything else limit
    if not watched:
        _show(app, app.client.queue_page(limit=size))
        return ExitCode.SUCCESS
    shown: dict[str, Any] | None = None
    try:
        while True:
            found = app.client.queue_page(limit=size)
            if found != shown:
                if app.as_json:
                    app.console.event("QUEUE", found)
                else:
                    app.console.write(CLEAR if sys.stdout.isatty() else "\n" if shown else "")
                    _show(app, found)
                shown = found
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _show(app: App, found: dict[str, Any]) -> None:
    if app.as_json:
        app.console.data(found)
        return
    runs = found["runs"]
    if not runs:
        app.console.note("Nothing waits.")
    else:
        app.console.text(formats.table(HEAD, [_row(run) for run in runs], right=(0, 1)))
    if found.get("waiting", 0) > len(runs):
        app.console.note(f"{len(runs)} of {found['waiting']} are shown; --all shows all of them.", "dim")
    told = explain_text.estimates(found.get("estimates"))
    if told:
        app.console.note(told, "dim")


def _row(run: dict[str, Any]) -> list[object]:
    pending = run.get("pending") or {}
    return [
        run.get("position") or "-",
        run["run_id"],
        run_text.label(run),
        run_text.gang(run),
        run.get("priority") or "NORMAL",
        formats.moment(run.get("submitted_at")),
        explain_text.starts(pending.get("eta")) or "-",
        run_text.reason_text(run) or "-",
    ]
