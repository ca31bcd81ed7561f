"""``airyard triage``: why a run failed, from its logs: the server's, or saved ones without any server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.cli.exit_codes import ExitCode

_COLOURS = {"hardware": "red", "driver": "red", "network": "yellow", "config": "yellow", "user": "cyan"}
_WIDTH = 160


@verb("triage")
@click.argument("paths", nargs=-1, metavar="ID|FILE|DIR...")
@click.option("--kernel", multiple=True, metavar="FILE", help="A kernel's log, whatever its name.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="N", help="Of a run: this attempt.")
def command(app: App, paths: tuple[str, ...], kernel: tuple[str, ...], attempt: int | None) -> int:
    """Say why a run failed: cause, class, first failing rank, who is blamed, what to do, with the lines that say so.

    Of a run of the server by its ID (the latest attempt that failed), or of saved logs, without a server: one file a
    rank, or one for all; .gz too. Files called dmesg*, kern*, kmsg*, journal*, messages* or syslog* are taken for a
    kernel's log. Only such a one confirms that a machine is at fault, never what a job printed.
    """
    if not paths and not kernel:
        raise click.UsageError("Name a run, or the files or folders of its logs.")
    if not kernel and len(paths) == 1 and _names_a_run(paths[0]):
        answer = app.client.triage(paths[0], attempt=-1 if attempt is None else attempt)
        said = {"run_id": answer["run_id"], "attempt": answer["attempt"], **answer["verdict"]}
    elif attempt is not None:
        raise click.UsageError("--attempt is of a run: saved logs are of one attempt.")
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


def _of_files(app: App, paths: tuple[str, ...], kernel: tuple[str, ...]) -> dict[str, Any]:
    from airyard.cli.triage_files import logs_of, read  # slow to import, and for this verb only
    from airyard.core.triage.judging import judge

    logs, notes = logs_of(paths, kernel)
    findings = read(logs)
    if findings.foreign_kernel_lines:
        count = findings.foreign_kernel_lines
        notes.append(f"{count} lines of a kernel's log were not written by the kernel: they do not count")
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
    rows = [
        ("cause", f"{said['message']} ({said['rule']})"),
        ("class", formats.paint(said["class"], _COLOURS.get(said["class"]), colour) + f" → {said['cause']}"),
        ("first rank", "-" if said["first_rank"] is None else str(said["first_rank"])),
        ("blamed", _blamed(said)),
        ("confidence", f"{said['confidence']:.0%}"),
        ("action", str(said["action"]).replace("_", " ")),
        ("next", str(said["next_step"])),
    ]
    lines = [f"{name:<11} {text}" for name, text in rows]
    for number, line in enumerate(said["evidence"]):
        name = "evidence" if number == 0 else ""
        lines.append(f"{name:<11} {line['file']}:{line['line']}: {line['text'][:_WIDTH]}")
    if said["also_seen"]:
        lines.append(f"{'also seen':<11} {', '.join(said['also_seen'])}")
    lines.append(f"{'read':<11} {_read(said)}")
    return "\n".join(lines)


def _read(said: Mapping[str, Any]) -> str:
    if "run_id" in said:
        return f"the logs of attempt {said['attempt']} of run {said['run_id']}"
    files = formats.plural(int(said["files"]), "file")
    return f"{files}, {formats.plural(int(said['lines']), 'line')}, {formats.size(said['octets'])}"


def _blamed(said: Mapping[str, Any]) -> str:
    named = [str(said[name]) for name in ("blamed_node", "blamed_device") if said[name]]
    if not named:
        return "nobody" if not said["confirmed"] else "the machine of the kernel's log"
    return f"{', '.join(named)}, {'confirmed by the kernel' if said['confirmed'] else 'a suspect: only a job says so'}"
