"""``airyard token``: what people, agents and services identify themselves with."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, VerbGroup, pass_app
from airyard.cli.moments import SpanType


@click.group("token", cls=VerbGroup)
def command() -> None:
    """Give out tokens, list them, take them back. The text of a token is shown once, when it is made."""


@command.command("create")
@click.option(
    "--name", metavar="NAME", required=True, help="What it is for; one living token of a user has it."
)
@click.option("--for", "user", metavar="USER", help="Whose it is (yours).")
@click.option("--scope", type=click.Choice(["read", "write", "admin"]), help="How far it reaches (write).")
@click.option("--project", metavar="P", help="Only runs of this project.")
@click.option(
    "--kind", type=click.Choice(["person", "agent", "service"]), help="What uses it (as its user is)."
)
@click.option(
    "--expires", "expires_s", type=SpanType(), metavar="SPAN", help="For how long: 12h, 30d (for good)."
)
@click.option(
    "--gpu-hours-limit", type=click.FloatRange(min=0), metavar="H", help="What its runs may use in all."
)
@pass_app
def create(app: App, name: str, **given: Any) -> None:
    """Give out a token, no wider than the one that asks. Its text alone goes to stdout.

    \b
    airyard token create --name laptop
    airyard token create --name night --kind agent --project nlp --expires 12h --gpu-hours-limit 64
    airyard token create --for bob --name bob-laptop > bob.token
    """
    fields = {key: value for key, value in given.items() if value is not None}
    made = app.client.tokens.create(name, **fields)
    if app.as_json:
        app.console.data(made)
        return
    token = made["token"]
    until = f"until {formats.moment(token['expires_at'])}" if token["expires_at"] else "until it is revoked"
    app.console.note(
        f"token {token['token_id']} ({token['name']}) of {token['user']}, {_reach(token)}, {until}; "
        "its text is shown this once"
    )
    app.console.text(made["secret"])


@command.command("list")
@pass_app
def list_(app: App) -> None:
    """List your tokens, newest first; an admin sees everybody's."""
    found = app.client.tokens.list()
    if app.as_json:
        app.console.data({"tokens": found})
        return
    if not found:
        app.console.note("No tokens.")
        return
    head = ("ID", "USER", "NAME", "REACH", "STATE", "LAST USED", "GPU-HOURS")
    rows = [
        [
            token["token_id"],
            token["user"],
            token["name"],
            _reach(token),
            _state(token),
            formats.moment(token["last_used_at"]) if token["last_used_at"] else "never",
            _hours(token),
        ]
        for token in found
    ]
    app.console.text(formats.table(head, rows))


@command.command("revoke")
@click.argument("token_ids", metavar="ID...", nargs=-1, required=True)
@pass_app
def revoke(app: App, token_ids: tuple[str, ...]) -> None:
    """Take tokens back by their ids: they are refused at once, and answers to them under way are cut."""
    for token_id in token_ids:
        app.client.tokens.revoke(token_id)
        if not app.as_json:
            app.console.text(f"revoked {token_id}")
    if app.as_json:
        app.console.data({"revoked": list(token_ids)})


def _reach(token: dict[str, Any]) -> str:
    project = f" in {token['project']}" if token["project"] else ""
    return f"{token['kind']}, {token['scope']}{project}"


def _state(token: dict[str, Any]) -> str:
    if token["revoked_at"]:
        return "revoked"
    if not token["valid"]:
        return "over"
    return f"until {formats.moment(token['expires_at'])}" if token["expires_at"] else "valid"


def _hours(token: dict[str, Any]) -> str:
    limit = token["gpu_hours_limit"]
    used = f"{token['gpu_hours_used']:.1f}"
    return f"{used} of {limit:g}" if limit is not None else used
