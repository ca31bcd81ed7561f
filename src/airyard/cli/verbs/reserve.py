"""``airyard reserve``: set nodes aside for a time."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.cli.moments import NOW, MomentType, SpanType


@verb("reserve")
@click.option("--nodes", metavar="N1,N2", multiple=True, required=True, help="Which nodes; repeatable.")
@click.option("--from", "begin", type=MomentType(), metavar="TIME", default=NOW, help="Its begin (now).")
@click.option("--to", "end", type=MomentType(), metavar="TIME", help="Its end.")
@click.option("--for", "duration_s", type=SpanType(), metavar="SPAN", help="Instead of --to: 90m, 2h, 1d.")
@click.option("--maintenance", is_flag=True, help="For nobody's runs.")
@click.option("--project", metavar="NAME", help="For the runs of this project (your own).")
@click.option("--note", metavar="TEXT", help="Why; shown with it.")
@click.option("--evict", is_flag=True, help="From now on over running work: ask those runs to leave.")
def command(app: App, nodes: tuple[str, ...], **given: Any) -> None:
    """Set nodes aside for a time: for a project, or for maintenance.

    Runs of others that are still there are asked to leave in time for its begin; they keep their place in the queue.

    \b
    airyard reserve --nodes n1,n2 --from 22:00 --for 2h --maintenance --note "new fans"
    airyard reserve --nodes n3 --from '2026-12-02 08:00' --to '2026-12-04 18:00' --project nlp
    """
    if (given["end"] is None) == (given["duration_s"] is None):
        raise click.UsageError("Say when it ends: --to TIME or --for SPAN.")
    if given["maintenance"] and given["project"]:
        raise click.UsageError("--maintenance is for nobody's runs; --project is for those of a project.")
    if given["end"] == NOW:
        raise click.UsageError("--to now would be over at once.")
    named = [name.strip() for text in nodes for name in text.split(",") if name.strip()]
    fields = {
        "from_at": None if given["begin"] == NOW else given["begin"],
        "to_at": given["end"],
        "duration_s": given["duration_s"],
        "project": given["project"],
        "note": given["note"],
    }
    asked = {name: value for name, value in fields.items() if value is not None}
    flags = {name: True for name in ("maintenance", "evict") if given[name]}
    answer = app.client.reserve(named, **asked, **flags)
    if app.as_json:
        app.console.data(answer)
        return
    made = answer["reservation"]
    app.console.text(
        f"reservation {made['reservation_id']}: {', '.join(made['nodes'])} {purpose(made)}, "
        f"{formats.moment(made['from_at'])} to {formats.moment(made['to_at'])}"
    )
    for warning in answer["warnings"]:
        app.console.note(f"warning: {warning}", "yellow")


def purpose(reservation: dict[str, Any]) -> str:
    """Say for what nodes are reserved."""
    return "for maintenance" if reservation["maintenance"] else f"for project {reservation['project']}"
