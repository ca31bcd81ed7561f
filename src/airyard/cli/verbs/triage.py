"""``airyard triage``: why a run failed, from its logs: the server's, or saved ones without any server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import click

from airyard.cli import formats, verdict_text
from airyard.cli.app import App, verb
from airyard.cli.exit_codes import ExitCode
from airyard.core.errors import NotFound, Unavailable, UserError
from airyard.core.workload import RUN_NAME_PATTERN


@verb("triage")
@click.argument("paths", nargs=-1, metavar="ID|FILE|DIR...")
@click.option("--kernel", multiple=True, metavar="FILE", help="A kernel's log, whatever its name.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="N", help="Of a run: this attempt.")
@click.option("--fresh", is_flag=True, help="Of a run: read all of its logs again.")
def command(
    app: App, paths: tuple[str, ...], kernel: tuple[str, ...], attempt: int | None, fresh: bool
) -> int:
    """Say why a run failed: cause, class, first failing rank, who is blamed, what to do, with the lines that say so.

    Of a run of the server by its ID: what was found when its latest failed attempt ended. Or of saved logs, without a
    server: one file a rank, or one for all; .gz too; - for what is piped in. Files called dmesg*, kern*, kmsg*,
    journal*, messages* or syslog* are taken for a kernel's log. Only such a one confirms that a machine is at fault,
    never what a job printed.
    """
    if not paths and not kernel:
        raise click.UsageError("Name a run, or the files or folders of its logs.")
    if not kernel and len(paths) == 1 and _names_a_run(paths[0]):
        said = _of_run(app, paths[0], attempt, fresh)
    elif not kernel and len(paths) == 1 and _may_name_a_run(paths[0]):
        said = _of_named(app, paths[0], attempt, fresh)
    elif attempt is not None or fresh:
        option = "--fresh" if attempt is None else "--attempt"
        raise click.UsageError(f"{option} is of a run: saved logs are of one attempt, and are always read.")
    else:
        said = _of_files(app, paths, kernel)
    if app.as_json:
        app.console.data(said)
    else:
        app.console.text(_text(said, app.console.colour_out))
    return ExitCode.SUCCESS


def _names_a_run(text: str) -> bool:
    """Return whether it can only be meant as a run: a file of that name goes first."""
    return not os.path.exists(text) and (text.isdecimal() or text.startswith(("@", "tag:")))


def _may_name_a_run(text: str) -> bool:
    """Return whether it can be the name of a run, or of a file that is not there."""
    return not os.path.exists(text) and re.fullmatch(RUN_NAME_PATTERN, text) is not None


def _of_named(app: App, name: str, attempt: int | None, fresh: bool) -> dict[str, Any]:
    """Ask for a run by its name. For what may as well be a wrong path no server is started."""
    if attempt is not None or fresh:
        return _of_run(app, name, attempt, fresh)
    target, why = app.client.target, "no server runs that may have a run of that name"
    try:
        if target.host is None:
            from airyard.sdk import embedded  # slow to import

            if embedded.find(target.home) is None:
                raise _nothing(name, why)
        return _of_run(app, name, attempt, fresh)
    except NotFound as error:
        if error.code != "RUN_NOT_FOUND":
            raise
        why = "no run has that name"
    except Unavailable as error:
        why = f"whether a run has that name cannot be told: {error.message}"
    raise _nothing(name, why)


def _nothing(name: str, why: str) -> UserError:
    return UserError(
        f"there is no file {name}, and {why}",
        code="LOG_NOT_FOUND",
        fix="Check the path; `airyard list` shows the runs.",
    )


def _of_run(app: App, ref: str, attempt: int | None, fresh: bool) -> dict[str, Any]:
    answer = dict(app.client.triage(ref, attempt=-1 if attempt is None else attempt, fresh=fresh))
    return {**answer.pop("verdict"), **answer}


def _of_files(app: App, paths: tuple[str, ...], kernel: tuple[str, ...]) -> dict[str, Any]:
    from airyard.cli.triage_files import logs_of, read  # slow to import, and for this verb only
    from airyard.core.triage.judging import judge

    logs, notes = logs_of(paths, kernel)
    findings, damaged = read(logs)
    notes += damaged
    if findings.foreign_kernel_lines:
        count = findings.foreign_kernel_lines
        lines, are = ("line", "was") if count == 1 else ("lines", "were")
        notes.append(f"{count} {lines} of a kernel's log {are} not written by the kernel, and not counted")
    if not app.as_json:
        for note in notes:
            app.console.note(note)
    return {
        **judge(findings).as_json(),
        "files": len(logs),
        "lines": findings.lines,
        "octets": findings.octets,
        "notes": notes,
    }


def _text(said: Mapping[str, Any], colour: bool) -> str:
    rows = [*verdict_text.rows(said, colour=colour), ("read", _read(said))]
    return "\n".join(f"{name:<11} {text}" for name, text in rows)


def _read(said: Mapping[str, Any]) -> str:
    if "run_id" in said:
        what = f"attempt {said['attempt']} of run {said['run_id']}"
        when = f", judged at its end ({formats.moment(said['judged_at'])})" if said.get("judged_at") else ""
        # A server of before says nothing of how much it read.
        how_much = f": {verdict_text.from_what(said)}" if said.get("members") else ""
        return f"the logs of {what}{when}{how_much}"
    files = formats.plural(int(said["files"]), "file")
    return f"{files}, {formats.plural(int(said['lines']), 'line')}, {formats.size(said['octets'])}"
