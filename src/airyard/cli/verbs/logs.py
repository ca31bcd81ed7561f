"""``airyard logs``: the output of all nodes, printed, followed or downloaded."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.cli.exit_codes import ExitCode
from airyard.cli.watching import LogPrinter
from airyard.core.errors import NotFound
from airyard.sdk.requests import LATEST

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, None: 1000}


@verb("logs")
@click.argument("ref", metavar="ID")
@click.option("--node", type=click.IntRange(min=0), help="Only this node rank (all).")
@click.option("--attempt", type=click.IntRange(min=LATEST), default=LATEST, help="This attempt (the latest).")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin N lines before the end.")
@click.option(
    "--since", metavar="10m", help="Begin this long ago (30s, 10m, 2h, 1d), or at an RFC 3339 time."
)
@click.option("--grep", metavar="RE", help="Only lines that match.")
@click.option("--no-follow", is_flag=True, help="Print what is there and leave.")
@click.option(
    "--download-to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write each node's output to DIR/logs/node_<n>.log, octet by octet.",
)
def command(
    app: App,
    ref: str,
    node: int | None,
    attempt: int,
    tail: int | None,
    since: str | None,
    grep: str | None,
    no_follow: bool,
    download_to: Path | None,
) -> int:
    """Print the logs of all nodes, in time order; follow them while the run is active."""
    run = app.client.get(ref)
    if download_to is not None:
        if tail is not None or since or grep:
            raise click.UsageError("--download-to takes everything: no --tail, --since or --grep.")
        return _download(app, run, node, attempt, download_to)
    latest = attempt in (LATEST, run.get("attempt"))
    follow = not no_follow and latest and run.get("state") != "ENDED"
    events = app.client.logs(
        run["run_id"],
        attempt=attempt,
        node=node,
        tail=tail,
        since_ms=None if since is None else since_ms(since, time.time()),
        grep=grep,
        follow=follow,
    )
    printer = LogPrinter(app.console, prefixed=(run.get("nodes") or 1) > 1)
    lines = 0
    for event in events:
        lines += event["type"] == "LOG"
        _show(app, printer, event)
    if not lines and not app.as_json:
        app.console.note(_why_empty(run))
    return ExitCode.SUCCESS


def since_ms(text: str, now_s: float) -> int:
    """Read ``10m`` or an RFC 3339 time as Unix milliseconds. Raises: click.BadParameter."""
    match = _SPAN.fullmatch(text.strip())
    if match:
        return int(max(now_s * 1000 - float(match[1]) * _UNIT_MS[match[2]], 0))
    try:
        return max(int(formats.parse_time(text).timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a span like 10m nor a time like 2026-01-31T12:00:00Z.", param_hint="--since"
        ) from None


def _show(app: App, printer: LogPrinter, event: dict[str, Any]) -> None:
    if app.as_json:
        app.console.event(event["type"], {key: value for key, value in event.items() if key != "type"})
    elif event["type"] == "LOG":
        printer.line(event)
    elif event["type"] == "GAP":
        printer.gap(event)
    elif event["type"] == "END":
        printer.close()
        _say_incomplete(app, event)


def _say_incomplete(app: App, end: dict[str, Any]) -> None:
    nodes = [member["node"] for member in end.get("members") or () if not member.get("complete")]
    if end.get("complete") is False and nodes:
        app.console.note(f"incomplete: node {', '.join(map(str, nodes))}", "yellow")


def _why_empty(run: dict[str, Any]) -> str:
    if run.get("state") == "QUEUED":
        return f"No logs: run {run['run_id']} waits. `airyard explain {run['run_id']}` says why."
    if run.get("state") == "ENDED":
        failure = run.get("failure") or {}
        return f"No lines. {failure.get('message') or ''}".rstrip()
    return "No lines yet."


def _download(app: App, run: dict[str, Any], node: int | None, attempt: int, folder: Path) -> int:
    attempts = run.get("attempts") or []
    number = run.get("attempt") if attempt == LATEST else attempt
    chosen = next((each for each in attempts if each["attempt"] == number), None)
    if chosen is None:
        raise NotFound(f"Run {run['run_id']} has no attempt {number}; it has {len(attempts)}.")
    members = [each for each in chosen.get("members") or () if node in (None, each["member"])]
    if not members:
        raise NotFound(f"Attempt {number} of run {run['run_id']} has no node {node}.", code="NO_NODE")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    files = []
    for member in members:
        path = folder / "logs" / f"node_{member['member']}.log"
        with open(path, "wb") as sink:
            size = app.client.download_log(
                run["run_id"], sink, node=member["member"], attempt=chosen["attempt"]
            )
        complete = bool((member.get("logs") or {}).get("complete"))
        files.append({"node": member["member"], "path": str(path), "bytes": size, "complete": complete})
    if app.as_json:
        app.console.data({"run_id": run["run_id"], "attempt": chosen["attempt"], "files": files})
        return ExitCode.SUCCESS
    for file in files:
        note = "" if file["complete"] else "  incomplete"
        app.console.text(f"{file['path']}  {formats.size(file['bytes'])}{note}")
    return ExitCode.SUCCESS
