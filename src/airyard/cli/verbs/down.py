"""``airyard down``: stop the local server."""

from __future__ import annotations

import time
from pathlib import Path

import click

from airyard.cli import run_text
from airyard.cli.app import App, verb
from airyard.core.errors import Conflict, Fix, Unavailable, UserError
from airyard.sdk.client import Client
from airyard.sdk.transport import ConnectionLost

STOP_TIMEOUT_S = 120.0
MAX_SHOWN = 20


@verb("down")
@click.option("--keep-runs", is_flag=True, help="Leave live runs running; the next server takes them over.")
@click.option("--cancel-runs", is_flag=True, help="Cancel live runs first.")
def command(app: App, keep_runs: bool, cancel_runs: bool) -> None:
    """Stop the local server. With live runs it refuses and lists them, unless told what to do with them."""
    from airyard.sdk import embedded

    if keep_runs and cancel_runs:
        raise click.UsageError("--keep-runs and --cancel-runs exclude each other.")
    target = app.client.target
    if target.host is not None:
        raise UserError(
            f"`down` stops the local server; {target.host} is configured (from {target.origin}).",
            code="HOST_CONFIGURED",
            fix="Stop that server where it runs.",
        )
    endpoint = embedded.read_endpoint(target.home)
    if endpoint is None or embedded.find(target.home) is None:
        if app.as_json:
            app.console.data({"stopped": False, "reason": "not running"})
        else:
            app.console.note(f"No local server runs for {target.home}.")
        return
    _ask(app.client, "keep" if keep_runs else "cancel" if cancel_runs else "refuse")
    _wait_gone(target.home, endpoint.pid)
    if app.as_json:
        app.console.data({"stopped": True, "pid": endpoint.pid})
    else:
        kept = "; its runs go on" if keep_runs else ""
        app.console.text(f"stopped the local server (pid {endpoint.pid}){kept}")


def _ask(client: Client, runs: str) -> None:
    try:
        client.shutdown(runs=runs)
    except ConnectionLost:
        pass  # it went before its answer did; whether it is gone is seen next
    except Conflict as error:
        live = client.list(state="live", limit=None)
        lines = [
            f"  run {run['run_id']}  {run_text.label(run)}  {run_text.status_word(run)}"
            for run in live[:MAX_SHOWN]
        ]
        if len(live) > MAX_SHOWN:
            lines.append(f"  and {len(live) - MAX_SHOWN} more: airyard list --state live --all")
        raise Conflict(
            "\n".join([error.message, *lines]),
            code=error.code,
            fix=Fix(
                text="`airyard down --keep-runs` leaves them running, `--cancel-runs` cancels them first.",
                command="airyard down --keep-runs",
            ),
            details={**error.details, "runs": [run["run_id"] for run in live]},
        ) from None


def _wait_gone(home: Path, pid: int) -> None:
    from airyard.sdk import embedded

    deadline = time.monotonic() + STOP_TIMEOUT_S
    while embedded.is_alive(pid):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"The server (pid {pid}) was asked to stop {STOP_TIMEOUT_S:.0f} s ago and is still there.",
                code="STILL_STOPPING",
                fix=f"Look at {home / 'server' / 'server.log'}.",
            )
        time.sleep(0.05)
