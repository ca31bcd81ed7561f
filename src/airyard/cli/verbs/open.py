"""``airyard open``: a page that works from this machine."""

from __future__ import annotations

import click

from airyard.cli.app import App, verb
from airyard.core.errors import NotFound


@verb("open")
@click.argument("ref", metavar="ID")
def command(app: App, ref: str) -> None:
    """Print the address of the run's MLflow page, as this machine reaches it."""
    run = app.client.get(ref)
    tracking = run.get("tracking") or {}
    if not tracking.get("url"):
        state = tracking.get("state")
        why = f"tracking is {state}" if state else "no attempt has started, or tracking is off"
        raise NotFound(f"Run {run['run_id']} has no page: {why}.", code="NO_PAGE")
    if app.as_json:
        app.console.data({"run_id": run["run_id"], "url": tracking["url"]})
    else:
        app.console.text(tracking["url"])
