"""``airyard open``: a page that works from this machine."""

from __future__ import annotations

import click

from airyard.cli.app import App, verb


@verb("open")
@click.argument("ref", metavar="ID")
def command(app: App, ref: str) -> None:
    """Print a link to the run's MLflow page. It signs one browser in, within two minutes."""
    url = app.client.page(ref)
    if app.as_json:
        app.console.data({"ref": ref, "url": url})
    else:
        app.console.text(url)
