"""``airyard list``: runs, newest first."""

from __future__ import annotations

import click

from airyard.cli import explain_text, formats, run_text
from airyard.cli.app import App, key_values, verb

STATES = ("queued", "active", "live", "ended", "all")
STATUSES = ("preparing", "running", "stopping", "succeeded", "failed", "timed_out", "cancelled")


@verb("list")
@click.option(
    "--state",
    type=click.Choice([*STATES, *STATUSES], case_sensitive=False),
    default="all",
    help="Only these: a state (live is queued and active), or a status as the list shows it (all).",
)
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, help="At most so many (20).")
@click.option("--all", "everything", is_flag=True, help="No limit.")
@click.option("--tag", "tags", metavar="K=V", multiple=True, help="Only runs with this tag; repeatable.")
@click.option("--experiment", metavar="NAME", help="Only runs of this experiment.")
@click.option("--owner", metavar="USER", help="Only runs of this user.")
def command(
    app: App,
    state: str,
    limit: int,
    everything: bool,
    tags: tuple[str, ...],
    experiment: str | None,
    owner: str | None,
) -> None:
    """List runs, newest first."""
    runs = app.client.list(
        state=state,
        limit=None if everything else limit,
        tags=key_values(tags, "--tag"),
        experiment=experiment,
        owner=owner,
    )
    if app.as_json:
        app.console.data({"runs": runs})
        return
    if not runs:
        app.console.note("No runs." if state == "all" else f"No runs ({state}).")
        return
    colour = app.console.colour_out
    rows = [run_text.row(run, colour=colour) for run in runs]
    head: tuple[str, ...] = run_text.LIST_HEAD
    if any(run.get("pending") for run in runs):
        head = (*head, "WAITS FOR")
        rows = [[*row, explain_text.waits_for(run)] for row, run in zip(rows, runs, strict=True)]
    app.console.text(formats.table(head, rows, right=(0,)))
