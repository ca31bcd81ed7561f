"""``airyard server``: a server in the foreground, for systemd, containers and people who look."""

from __future__ import annotations

import os

import click

from airyard.cli.app import App, verb
from airyard.sdk import config, embedded


@verb("server", context_settings={"ignore_unknown_options": True})
@click.option(
    "--config", "file", type=click.Path(exists=True, dir_okay=False), help="Its configuration file."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[SERVER OPTIONS]")
def command(app: App, file: str | None, arguments: tuple[str, ...]) -> None:
    """Run a server here, in the foreground, until it is stopped. Other options go to it as they are."""
    home = config.home_folder(app.options.get("home"))
    embedded.check_startable(home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    extra = ["--config", file] if file else []
    line = embedded.server_command(home, [*extra, *arguments])
    os.execv(line[0], line)
