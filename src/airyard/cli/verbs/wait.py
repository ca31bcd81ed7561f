"""``airyard wait``: until runs have ended."""

from __future__ import annotations

import click

from airyard.cli import run_text
from airyard.cli.app import App, verb
from airyard.cli.exit_codes import ExitCode, of_runs
from airyard.core.errors import Unavailable


@verb("wait")
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@click.option("--any", "any_", is_flag=True, help="Return when the first of them has ended.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up after this (exit 8)."
)
def command(app: App, refs: tuple[str, ...], any_: bool, timeout: float | None) -> int:
    """Wait for runs to end; exit as the first of them, in the order given, that did not succeed.

    With --any: as the first that ended.
    """
    try:
        runs = app.client.wait(refs, any_=any_, timeout_s=timeout)
    except Unavailable as error:
        if error.code == "WAIT_TIMEOUT":
            app.console.error(error)
            return ExitCode.DEADLINE
        raise
    ended = [run for run in runs if run.get("state") == "ENDED"]
    if app.as_json:
        app.console.data({"runs": runs, "ended": [run["run_id"] for run in ended]})
    else:
        for run in ended:
            app.console.text(run_text.verdict(run))
    return of_runs(sorted(ended, key=lambda run: run.get("ended_at") or "")[:1] if any_ else ended)
