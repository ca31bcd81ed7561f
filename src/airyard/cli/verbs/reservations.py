"""``airyard reservations``: which nodes are set aside, and when."""

from __future__ import annotations

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.cli.verbs.reserve import purpose


@verb("reservations")
def command(app: App) -> None:
    """List the reservations that are not over, by their begin."""
    found = app.client.reservations()
    if app.as_json:
        app.console.data({"reservations": found})
        return
    if not found:
        app.console.note("No reservations.")
        return
    colour = app.console.colour_out
    rows = [
        [
            each["reservation_id"],
            ", ".join(each["nodes"]),
            formats.paint("active", "yellow", colour) if each["active"] else "planned",
            formats.moment(each["from_at"]),
            formats.moment(each["to_at"]),
            purpose(each).removeprefix("for "),
            each["by"],
            each["note"] or "-",
        ]
        for each in found
    ]
    head = ("ID", "NODES", "STATE", "FROM", "TO", "FOR", "BY", "NOTE")
    app.console.text(formats.table(head, rows, right=(0,)))
