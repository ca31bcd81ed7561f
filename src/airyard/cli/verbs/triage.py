"""``airyard triage``: why a run failed, from its saved logs, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.cli.exit_codes import ExitCode

_COLOURS = {"hardware": "red", "driver": "red", "network": "yellow", "config": "yellow", "user": "cyan"}
_WIDTH = 160


@verb("triage")
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR...")
@click.option(
    "--kernel",
    multiple=True,
    metavar="FILE",
    help="A kernel's log (dmesg, journalctl -k), whatever its name.",
)
def command(app: App, paths: tuple[str, ...], kernel: tuple[str, ...]) -> int:
    """Say why a run failed: cause, class, first failing rank, who is blamed, what to do, with the lines that say so.

    One file a rank, or one for all; .gz too. Files called dmesg*, kern*, kmsg*, journal*, messages* or syslog* are
    taken for a kernel's log. Only such a one confirms that a machine is at fault, never what a job printed.
    """
    from airyard.cli.triage_files import logs_of, read  # slow to import, and for this verb only
    from airyard.core.triage.judging import judge

    logs, notes = logs_of(paths, kernel)
    findings = read(logs)
    verdict = judge(findings)
    said = {
        "class": verdict.failure_class.value,
        "cause": verdict.cause.value,
        "action": verdict.action.value,
        "rule": verdict.rule,
        "message": verdict.message,
        "next_step": verdict.next_step,
        "confidence": verdict.confidence,
        "confirmed": verdict.confirmed,
        "first_rank": verdict.first_rank,
        "blamed_node": verdict.blamed_node or None,
        "blamed_device": verdict.blamed_device or None,
        "evidence": [
            {
                "file": line.file,
                "line": line.number,
                "rank": line.rank,
                "kernel": line.kernel,
                "text": line.text,
            }
            for line in verdict.evidence
        ],
        "also_seen": list(verdict.cascade),
        "files": len(logs),
        "lines": findings.lines,
        "octets": findings.octets,
        "notes": notes,
    }
    if app.as_json:
        app.console.data(said)
        return ExitCode.SUCCESS
    for note in notes:
        app.console.note(note)
    if findings.foreign_kernel_lines:
        app.console.note(
            f"{findings.foreign_kernel_lines} lines of a kernel's log were not written by the kernel: they do not count"
        )
    app.console.text(_text(said, app.console.colour_out))
    return ExitCode.SUCCESS


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
    lines.append(
        f"{'read':<11} {said['files']} files, {said['lines']:,} lines, {formats.size(said['octets'])}"
    )
    return "\n".join(lines)


def _blamed(said: Mapping[str, Any]) -> str:
    named = [str(said[name]) for name in ("blamed_node", "blamed_device") if said[name]]
    if not named:
        return "nobody" if not said["confirmed"] else "the machine of the kernel's log"
    return f"{', '.join(named)}, {'confirmed by the kernel' if said['confirmed'] else 'a suspect: only a job says so'}"
