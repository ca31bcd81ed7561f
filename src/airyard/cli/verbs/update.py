"""``airyard update``: change runs after their submit. ``hold`` and ``release`` share what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, refusal_of, verb
from airyard.cli.moments import NOW, MomentType, SpanType
from airyard.core.errors import AiryardError

Say = Callable[[dict[str, Any], list[str]], str]
"""(run, the names of what changed) -> the line that tells it."""
NO_LIMIT = 0


@verb("update")
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--priority",
    type=click.Choice(["CRITICAL", "NORMAL", "BEST_EFFORT"], case_sensitive=False),
    help="Its class; CRITICAL needs a right.",
)
@click.option("--project", metavar="NAME", help="The project it is charged to; only while it is queued.")
@click.option(
    "--timeout",
    "timeout_s",
    type=SpanType(none_is=NO_LIMIT),
    metavar="SPAN",
    help="Time limit of an attempt: 90m, 2h, or none. A running one takes it at once.",
)
@click.option(
    "--begin",
    type=MomentType(),
    metavar="TIME",
    help="Not before: 08:00, '2026-12-02 08:00', +90m; now: as soon as there is room.",
)
def command(
    app: App,
    refs: tuple[str, ...],
    priority: str | None,
    project: str | None,
    timeout_s: int | None,
    begin: str | None,
) -> int:
    """Change queued or running runs: of each all that is named, or nothing.

    \b
    airyard update 12 --priority CRITICAL --timeout 2h
    airyard update 12 13 --begin 22:00
    """
    changes: dict[str, Any] = {}
    if priority is not None:
        changes["priority"] = priority
    if project is not None:
        changes["project"] = project
    if timeout_s is not None:
        changes["timeout_s"] = timeout_s or None
    if begin is not None:
        changes["begin_at"] = None if begin == NOW else begin
    if not changes:
        raise click.UsageError("Name what to change: --priority, --project, --timeout or --begin.")
    return change(app, refs, changes, heading="updated", say=_said)


def change(app: App, refs: tuple[str, ...], changes: dict[str, Any], *, heading: str, say: Say) -> int:
    """Change each run, say what became of it, and return the exit code: that of the first refusal."""
    answers: list[dict[str, Any]] = []
    failed: list[AiryardError] = []
    for ref in refs:
        try:
            answers.append(app.client.update(ref, **changes))
        except AiryardError as error:
            if len(refs) == 1:
                raise
            failed.append(refusal_of(error, ref))
    if app.as_json:
        app.console.data({heading: answers, "failed": [failure.as_json() for failure in failed]})
    else:
        for answer in answers:
            app.console.text(say(answer["run"], answer["changed"]))
            for warning in answer["warnings"]:
                app.console.note(f"warning: {warning}", "yellow")
        for failure in failed:
            app.console.error(failure)
    return failed[0].exit_code if failed else 0


def _said(run: dict[str, Any], changed: list[str]) -> str:
    if not changed:
        return f"run {run['run_id']} is so already: nothing to change"
    limit = formats.duration(run["timeout_s"] * 1000) if run.get("timeout_s") else "none"
    begin = (
        f"not before {formats.moment(run['begin_at'])}" if run.get("begin_at") else "as soon as there is room"
    )
    words = {
        "priority": f"priority {run['priority']}",
        "project": f"project {run['project']}",
        "timeout_s": f"time limit {limit}",
        "begin_at": f"begins {begin}",
    }
    return f"run {run['run_id']}: {', '.join(words.get(name, name) for name in changed)}"
