"""``airyard admin``: housekeeping of the server."""

from __future__ import annotations

import click

from airyard.cli import formats
from airyard.cli.app import App, VerbGroup, pass_app
from airyard.cli.exit_codes import ExitCode


@click.group("admin", cls=VerbGroup)
def command() -> None:
    """Clean up, and check the journal."""


@command.command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@pass_app
def gc(app: App, dry_run: bool) -> None:
    """Remove what retention no longer keeps: code, logs, environments, scratch, ended runs."""
    found = app.client.gc(dry_run=dry_run)
    if app.as_json:
        app.console.data(found)
        return
    word = "would be removed" if dry_run else "removed"
    app.console.text(formats.fields(_flat(found)) or f"nothing {word}")
    app.console.note(f"({word})")


@command.command("verify")
@pass_app
def verify(app: App) -> int:
    """Replay the journal and compare it with the live state and the read tables."""
    found = app.client.verify()
    problems = found.get("violations") or found.get("problems") or found.get("differences") or []
    if app.as_json:
        app.console.data(found)
    else:
        for problem in problems:
            app.console.text(str(problem))
        counts = [(name, value) for name, value in _flat(found) if not name.startswith("violations")]
        app.console.text(
            "\n".join(part for part in (formats.fields(counts), "" if problems else "ok") if part)
        )
    return ExitCode.PLATFORM if problems else ExitCode.SUCCESS


def _flat(found: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    out: list[tuple[str, object]] = []
    for name, value in found.items():
        path = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, dict):
            out += _flat(value, f"{path} ")
        elif name.endswith("bytes") and isinstance(value, int):
            out.append((path.removesuffix(" bytes"), formats.size(value)))
        elif isinstance(value, list):
            out.append((path, ", ".join(map(str, value)) or None))
        else:
            out.append((path, value))
    return out
