"""``airyard apply``: declare pools, projects and users from a file, or show what is declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.core.errors import AiryardError

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


@verb("apply")
@click.option("-f", "--file", metavar="FILE", help="The file to declare (./yard.yaml).")
@click.option(
    "--diff", "--dry-run", "diff", is_flag=True, help="Check it and show what would change; change nothing."
)
@click.option("--show", is_flag=True, help="Print what is declared now, as such a file.")
def command(app: App, file: str | None, diff: bool, show: bool) -> None:
    """Declare pools, projects and users: the file replaces what was declared before, at once.

    \b
    airyard apply --show > yard.yaml
    airyard apply -f yard.yaml --diff
    airyard apply -f yard.yaml
    """
    if show and (file or diff):
        raise click.UsageError("--show prints what is declared; it takes neither a file nor --diff.")
    if show:
        _show(app)
    else:
        _apply(app, file, diff=diff)


def _show(app: App) -> None:
    found = app.client.policy()
    if app.as_json:
        app.console.data(found)
        return
    from airyard.core.policy_json import policy_from_json
    from airyard.spec.yard_text import yard_text

    app.console.write(yard_text(policy_from_json(found["policy"])))


def _apply(app: App, file: str | None, *, diff: bool) -> None:
    from airyard.core.policy_json import policy_to_json
    from airyard.spec.yard import DEFAULT_YARD_FILE, InvalidYardFile, load_yard, placed

    try:
        loaded = load_yard(file or DEFAULT_YARD_FILE)
    except InvalidYardFile as broken:
        if broken.rest is not None:
            # All problems are told at once: what only the yard can know, too.
            try:
                app.client.declare_policy(policy_to_json(broken.rest.policy), dry_run=True)
            except AiryardError as refusal:
                broken.add(refusal)
        raise
    try:
        answer = app.client.declare_policy(policy_to_json(loaded.policy), dry_run=diff)
    except AiryardError as error:
        raise placed(error, loaded) from error
    if app.as_json:
        app.console.data({"file": loaded.file, **answer})
        return
    for warning in answer["warnings"]:
        text = f"warning: {loaded.place(warning['path'])}  {warning['message']}; {warning['fix']}"
        app.console.note(text, "yellow")
    lines = change_lines(answer["changes"], colour=app.console.colour_out)
    if not lines:
        app.console.text("no changes")
        return
    app.console.text("\n".join(lines))
    count = formats.plural(len(lines), "change")
    app.console.note(f"{count}; nothing was applied (--diff)" if diff else f"{count} applied", "dim")


def change_lines(changes: Iterable[Mapping[str, Any]], *, colour: bool) -> list[str]:
    """Write differences as ``+ path: value``, ``- path`` and ``~ path: before -> after``."""
    lines = []
    for change in changes:
        sign, paint = _SIGNS[change["kind"]]
        text = f"{sign} {change['path']}"
        if change["kind"] == "changed":
            text += f": {change['before']} -> {change['after']}"
        elif change["after"]:
            text += f": {change['after']}"
        lines.append(formats.paint(text, paint, colour))
    return lines
