"""``airyard secrets``: stored values that workloads name and nobody reads back."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, VerbGroup, pass_app
from airyard.core.errors import UserError

_project = click.option("--project", metavar="NAME", help="A secret of this project instead of your own.")


@click.group("secrets", cls=VerbGroup)
def command() -> None:
    """Store, list and delete secrets. A workload names one as SCOPE/KEY; its value never comes back."""


@command.command("put")
@click.argument("name", metavar="SCOPE/KEY")
@click.option("--from-file", type=click.Path(exists=True, dir_okay=False), help="Read the value from a file.")
@click.option("--from-env", metavar="VAR", help="Read the value from an environment variable.")
@click.option("--unmasked", is_flag=True, help="Allow a value under 6 bytes, which logs cannot mask.")
@_project
@pass_app
def put(
    app: App, name: str, from_file: str | None, from_env: str | None, unmasked: bool, project: str | None
) -> None:
    """Store a secret: from --from-file, --from-env, a pipe (without its last newline), or a prompt.

    Never from an argument: those are visible to every process of the machine.
    """
    scope, key = _split(name)
    value = _read(from_file, from_env)
    if not value:
        raise UserError(f"The value for {name} is empty.", code="EMPTY_SECRET")
    app.client.put_secret(scope, key, value, unmasked=unmasked, project=project)
    if app.as_json:
        app.console.data({"scope": scope, "key": key})
    else:
        app.console.text(f"stored {scope}/{key}")


@command.command("list")
@pass_app
def list_(app: App) -> None:
    """List the names of the stored secrets."""
    found = app.client.list_secrets()
    if app.as_json:
        app.console.data(found)
        return
    secrets: list[dict[str, Any]] = found.get("secrets") or []
    if not secrets:
        app.console.note("No secrets.")
        return
    rows = [
        [
            f"{each['scope']}/{each['key']}",
            each.get("project") or "-",
            formats.moment(each.get("updated_at") or each.get("created_at")),
        ]
        for each in secrets
    ]
    app.console.text(formats.table(("SECRET", "PROJECT", "STORED"), rows))


@command.command("delete")
@click.argument("name", metavar="SCOPE/KEY")
@_project
@pass_app
def delete(app: App, name: str, project: str | None) -> None:
    """Delete a secret."""
    scope, key = _split(name)
    app.client.delete_secret(scope, key, project=project)
    if app.as_json:
        app.console.data({"scope": scope, "key": key, "deleted": True})
    else:
        app.console.text(f"deleted {scope}/{key}")


def _split(name: str) -> tuple[str, str]:
    scope, sign, key = name.partition("/")
    if not sign or not scope or not key or "/" in key:
        raise click.BadParameter(f"{name!r} is not SCOPE/KEY.", param_hint="SCOPE/KEY")
    return scope, key


def _read(from_file: str | None, from_env: str | None) -> str:
    if from_file and from_env:
        raise click.UsageError("--from-file and --from-env exclude each other.")
    if from_env:
        if from_env not in os.environ:
            raise UserError(f"There is no environment variable {from_env}.", code="NO_VARIABLE")
        return os.environ[from_env]
    try:
        if from_file:
            with open(from_file, "rb") as file:
                return file.read().decode()
        if sys.stdin.isatty():
            return str(click.prompt("Value", hide_input=True, err=True))
        return sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UserError(
            "The value is not UTF-8 text; encode binary values (base64) first.", code="NOT_TEXT"
        ) from None
