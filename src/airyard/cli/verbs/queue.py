"""``airyard queue``: what waits, in order, and why."""

from __future__ import annotations

from airyard.cli import formats, run_text
from airyard.cli.app import App, verb


@verb("queue")
def command(app: App) -> None:
    """Show the waiting runs in the order they are considered, each with its reason."""
    runs = app.client.queue()
    if app.as_json:
        app.console.data({"runs": runs})
        return
    if not runs:
        app.console.note("Nothing waits.")
        return
    rows = [
        [
            run.get("position") or index,
            run["run_id"],
            run_text.label(run),
            run_text.gang(run),
            run.get("priority") or "NORMAL",
            formats.moment(run.get("submitted_at")),
            run_text.pending_text(run) or "-",
        ]
        for index, run in enumerate(runs, start=1)
    ]
    head = ("#", "ID", "NAME", "COMPUTE", "PRIORITY", "SUBMITTED", "WAITS FOR")
    app.console.text(formats.table(head, rows, right=(0, 1)))
