"""``airyard projects``: who owns quota, who may use it, who declared it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.cli.verbs.apply import change_lines
from airyard.core.wording import hours


@verb("projects")
@click.option("--history", is_flag=True, help="Who declared which policy, when, and what it changed.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=20, help="With --history: how many (20)."
)
def command(app: App, history: bool, limit: int) -> None:
    """List the projects: members, rights, what runs and waits, the budget of this month."""
    if history:
        _history(app, limit)
        return
    projects = app.client.projects()
    if app.as_json:
        app.console.data({"projects": projects})
        return
    rows = [
        [
            project["name"] + ("" if project["declared"] else " (not declared)"),
            "yes" if project["mine"] else "no",
            _people(project["members"]),
            _people(project["critical"]),
            project["active"],
            project["queued"],
            _budget(project),
        ]
        for project in projects
    ]
    head = ("PROJECT", "MINE", "MEMBERS", "CRITICAL", "ACTIVE", "QUEUED", "GPU-HOURS THIS MONTH")
    app.console.text(formats.table(head, rows, right=(4, 5)))
    if not any(project["declared"] for project in projects):
        app.console.note(
            "Nothing is declared: any project may be named. `airyard apply` declares some.", "dim"
        )


def _people(names: Sequence[str]) -> str:
    if "*" in names:
        return "everybody"
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return shown or "nobody"


def _budget(project: Mapping[str, Any]) -> str:
    used, budget = project["gpu_hours_this_month"], project["budget"]
    return hours(used) if budget is None else f"{hours(used)} of {budget['gpu_hours']:g} ({budget['over']})"


def _history(app: App, limit: int) -> None:
    found = app.client.policy_history(limit=limit)
    if app.as_json:
        app.console.data({"history": found})
        return
    if not found:
        app.console.note("Nobody has declared a policy, as far as the journal is kept.")
        return
    for each in found:
        where = "the configured file" if each["source"] == "config" else "airyard apply or the API"
        app.console.text(f"{formats.moment(each['at'])}  {each['by']}  by {where}")
        lines = change_lines(each["changes"], colour=app.console.colour_out) or ["no changes"]
        app.console.text("\n".join(f"  {line}" for line in lines))
