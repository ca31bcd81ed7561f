"""``airyard doctor``: this machine and configuration, checked, each finding with its fix."""

from __future__ import annotations

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.cli.diagnosis import FAIL, WARN, Finding, examine
from airyard.cli.exit_codes import ExitCode

_COLOUR = {FAIL: "red", WARN: "yellow"}


@verb("doctor")
@click.option("--start", is_flag=True, help="Start the local server if none runs, to check it too.")
def command(app: App, start: bool) -> int:
    """Check Python, the server's packages, uv, folders, disk, ports, token, server, MLflow, GPUs, containment.

    Exits 0 when nothing failed, else 2.
    """
    findings = examine(app.options, app.client.target, app.client, start=start)
    failed = any(finding.level == FAIL for finding in findings)
    if app.as_json:
        app.console.data({"ok": not failed, "checks": [finding.as_json() for finding in findings]})
    else:
        colour = app.console.colour_out
        for finding in findings:
            app.console.text(_line(finding, colour))
    return ExitCode.USAGE if failed else ExitCode.SUCCESS


def _line(finding: Finding, colour: bool) -> str:
    level = formats.paint(f"{finding.level:<4}", _COLOUR.get(finding.level, "green"), colour)
    line = f"{level}  {finding.name:<12} {finding.text}"
    return f"{line}\n{'':<19}fix: {finding.fix}" if finding.fix else line
