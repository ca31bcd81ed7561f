"""``airyard confirm-dead`` and ``airyard nodes confirm-dead``: the operator's word that a machine is dead."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli.app import App, confirm, verb
from airyard.core.errors import NotFound


@verb("confirm-dead")
@click.argument("name", metavar="NAME")
@click.option("--reason", metavar="TEXT", default="", help="Why; kept with it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(app: App, name: str, reason: str, yes: bool) -> None:
    """Give your word that nothing runs any more on a machine that is away: its runs go on elsewhere at once.

    NAME is the machine or a node of it. While it is connected this is refused. If it still runs, what is on it runs
    twice from then on: make sure that its power is off.
    """
    boot_id = ""
    question = f"Is {name} really dead? What still ran there would be running twice."
    try:
        found = app.client.node(name)
    except NotFound:
        found = None  # perhaps the name of a machine: the server knows
    if found is not None:
        boot_id = found["machine"]["boot_id"]
        question = _question(found)
    if not yes and (found is None or not found["machine"]["alive"]):
        if app.as_json:
            raise click.UsageError("There is nobody to ask with -o json; -y goes ahead without asking.")
        confirm(question)
    answer = app.client.confirm_dead(name, reason=reason, boot_id=boot_id)
    if app.as_json:
        app.console.data(answer)
    else:
        app.console.text(f"machine {answer['machine']} {answer['message']}")


def _question(found: dict[str, Any]) -> str:
    machine, runs = found["machine"], found["runs"]
    held = ", ".join(f"{run['run_id']} ({run['owner']})" for run in runs[:10])
    more = f" and {len(runs) - 10} more" if len(runs) > 10 else ""
    there = f"Runs on {found['node']['name']}: {held}{more}. " if runs else ""
    return (
        f"Machine {machine['name']} ({machine['address']}) is away. {there}"
        "Is it really dead? What still ran there would be running twice."
    )
