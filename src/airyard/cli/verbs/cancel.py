"""``airyard cancel``: stop runs."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli.app import App, confirm, refusal_of, verb
from airyard.core.errors import AiryardError


@verb("cancel")
@click.argument("refs", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every live run of yours.")
@click.option("-y", "--yes", is_flag=True, help="With --all: do not ask.")
def command(app: App, refs: tuple[str, ...], everything: bool, yes: bool) -> int:
    """Ask runs to stop; they end CANCELLED once their processes are gone. An ended run is left as it is."""
    if bool(refs) == everything:
        raise click.UsageError("Name the runs to cancel, or give --all.")
    if everything:
        refs = tuple(str(run["run_id"]) for run in app.client.list(state="live", owner="@me", limit=None))
        if refs and not yes and not app.as_json:
            confirm(f"Cancel {len(refs)} runs ({', '.join(refs)})?")
    answers: list[dict[str, Any]] = []
    failed: list[AiryardError] = []
    for ref in refs:
        try:
            answers.append(app.client.cancel(ref))
        except AiryardError as error:
            if len(refs) == 1:
                raise
            failed.append(refusal_of(error, ref))
    if app.as_json:
        app.console.data({"cancelled": answers, "failed": [failure.as_json() for failure in failed]})
    else:
        for answer in answers:
            done = "has already ended" if answer.get("already_ended") else "is asked to stop"
            app.console.text(f"run {answer['run_id']} {done}")
        for failure in failed:
            app.console.error(failure)
        if not refs:
            app.console.note("No live runs.")
    return failed[0].exit_code if failed else 0
