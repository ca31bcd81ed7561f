"""``airyard quota``: what each project may have, has and had of each pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.core.wording import hours


@verb("quota")
@click.option("--project", metavar="P", help="Only this project.")
def command(app: App, project: str | None) -> None:
    """Show guarantees, ceilings, use and decayed shares per project and pool, in devices.

    BORROWED is what stands on others' guarantees: all of BEST_EFFORT, and what goes beyond the own guarantee.
    SHARE is the project's part of all recent use of the pool; per weight, the smallest goes first.
    """
    found = app.client.quota(project)
    if app.as_json:
        app.console.data(found)
        return
    if found["rows"]:
        head = ("PROJECT", "POOL", "MINE", "USED", "GUARANTEED", "CEILING", "BORROWED", "WEIGHT", "SHARE")
        rows = [_row(row) for row in found["rows"]]
        app.console.text(formats.table(head, rows, right=tuple(range(2, len(head)))))
    else:
        app.console.note("No project has a share or uses a device.")
    for budget in found["budgets"]:
        app.console.text(
            f"{budget['project']}: {hours(budget['used_gpu_hours'])} of {budget['gpu_hours']:g} GPU-hours used this "
            f"month ({budget['over']} when spent), until {formats.moment(found['month_ends_at'])}"
        )
    mine = found["mine"]
    app.console.note(
        f"{found['user']}: {formats.plural(mine['devices'], 'device')} in use, {mine['active']} active and "
        f"{mine['queued']} queued; projects {', '.join(mine['projects']) or 'none'}; runs without a project go to "
        f"{mine['default_project']}",
        "dim",
    )


def _row(row: Mapping[str, Any]) -> list[object]:
    guarantee = str(row["guarantee"])
    if row["guarantee_now"] != row["guarantee"]:
        guarantee = f"{row['guarantee_now']} of {guarantee}"
    return [
        row["project"],
        row["pool"],
        row["mine"],
        row["used"],
        guarantee,
        "-" if row["ceiling"] is None else row["ceiling"],
        row["borrowed"],
        f"{row['weight']:g}",
        f"{100 * row['decayed_share']:.0f} %",
    ]
