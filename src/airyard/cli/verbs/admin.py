"""``airyard admin``: housekeeping of the server."""

from __future__ import annotations

import os
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, VerbGroup, pass_app
from airyard.cli.exit_codes import ExitCode


@click.group("admin", cls=VerbGroup)
def command() -> None:
    """Clean up, check, move and save the journal, read the audit."""


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
    rows = [[kind, part["count"], formats.size(part["bytes"])] for kind, part in _kinds(found).items()]
    if rows:
        app.console.text(formats.table(("KIND", "COUNT", "SIZE"), rows, right=(1, 2)))
    app.console.text(f"{formats.size(sum(part['bytes'] for part in _kinds(found).values()))} {word}")
    for failure in found.get("failed") or ():
        app.console.note(f"left: {failure}", "yellow")


@command.command("verify")
@pass_app
def verify(app: App) -> int:
    """Replay the journal and compare it with the live state and the read tables."""
    found = app.client.verify()
    differences = found.get("differences") or []
    if app.as_json:
        app.console.data(found)
    else:
        for difference in differences:
            app.console.text(str(difference))
        what = f"{formats.plural(found['events'], 'event')} ({found['first_seq']} to {found['last_seq']})"
        state = formats.plural(len(differences), "difference") if differences else "no difference"
        app.console.text(f"{what}, {formats.plural(found['runs'], 'run')}: {state}")
    return ExitCode.PLATFORM if differences else ExitCode.SUCCESS


@command.command("audit")
@click.option("--since", metavar="TIME", help="Only entries from then on: 2026-12-02T08:00Z, or 2h (ago).")
@pass_app
def audit(app: App, since: str | None) -> None:
    """Print who did what: every change, every look at logs, outputs and secrets, every refusal.

    With -o json the entries as they are, a JSON line each, to be kept elsewhere.
    """
    since_ms = _since_ms(since) if since is not None else 0
    rest = b""
    for chunk in app.client.tokens.audit(since_ms):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in filter(None, lines):
            text = line.decode("utf-8", "replace")
            app.console.write(text + "\n" if app.as_json else _audit_row(text) + "\n")


def _since_ms(text: str) -> int:
    """Read a time that has been. Raises: click.BadParameter."""
    import time
    from datetime import UTC, datetime

    from airyard.cli.moments import span_s

    try:
        return max(round((time.time() - span_s(text.removesuffix(" ago"))) * 1000), 0)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
        at_s = (found if found.tzinfo else found.astimezone(UTC)).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is neither a time nor a span.", param_hint="--since") from None
    return max(round(at_s * 1000), 0)


def _audit_row(text: str) -> str:
    import json

    found = json.loads(text)
    of_fleet = str(found.get("path")).startswith("/fleet/") and found.get("name")
    who = found.get("principal") or ("the fleet's token" if of_fleet else "somebody unknown")
    by = f" (token {found['token_id']})" if found.get("token_id") else ""
    what = " ".join(str(found[name]) for name in ("verb", "object", "name") if found.get(name))
    where = f" from {found['address']}" if found.get("address") else ""
    if of_fleet:  # join, until and leave are one verb of the table
        what = f"{found['path'].rpartition('/')[2]} machine {found['name']}"
    asked = what or f"{found.get('method')} {found.get('path')}"
    return f"{formats.moment(found.get('time'))}  {found.get('outcome'):<7}  {who}{by}: {asked}{where}"


@command.command("migrate")
@click.option(
    "--to", "url", required=True, metavar="URL", help="postgresql://user@host:5432/database, or sqlite."
)
@click.option(
    "--password-file", type=click.Path(exists=True, dir_okay=False), help="Password of that database."
)
@click.option(
    "--config", "file", type=click.Path(exists=True, dir_okay=False), help="The server's configuration file."
)
@pass_app
def migrate(app: App, url: str, password_file: str | None, file: str | None) -> None:
    """Move the journal to another database: all of it, verified, or nothing. The server must be stopped."""
    options = ["--password-file", os.path.abspath(password_file)] if password_file else []
    found = _maintain(app, file, "migrate", "--to", url, *options)
    if app.as_json:
        app.console.data(found)
        return
    app.console.text(_rows_text(found["tables"]))
    app.console.text(f"moved from {found['from']} to {found['to']} and compared, row by row")
    app.console.text(
        f'next: set url = "{found["url"]}" under [journal] in config.toml, then start the server'
    )


@command.command("backup")
@click.argument("archive", metavar="FILE", type=click.Path(dir_okay=False))
@click.option(
    "--config", "file", type=click.Path(exists=True, dir_okay=False), help="The server's configuration file."
)
@pass_app
def backup(app: App, archive: str, file: str | None) -> None:
    """Save journal, configuration, secrets, tokens and code into FILE (tar.gz); a server may be at work."""
    found = _maintain(app, file, "backup", os.path.abspath(archive))
    if app.as_json:
        app.console.data(found)
        return
    what = f"{formats.plural(found['files'], 'file')}, the journal up to event {found['journal']['last_seq']}"
    app.console.text(
        f"saved {what} into {archive} ({formats.size(found['bytes'])}); it holds keys: keep it safe"
    )
    app.console.note(f"left out: {', '.join(found['left_out'])}")


@command.command("restore")
@click.argument("archive", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@pass_app
def restore(app: App, archive: str) -> None:
    """Put a backup into an empty data folder; every file and the journal are checked first."""
    found = _maintain(app, None, "restore", os.path.abspath(archive))
    if app.as_json:
        app.console.data(found)
        return
    what = f"{formats.plural(found['files'], 'file')}, the journal up to event {found['journal']['last_seq']}"
    app.console.text(f"put {what} into {found['home']}; the journal is in {found['place']}")
    app.console.text(
        "next: start the server; what ran when the backup was made is looked for, and counts as lost"
    )


def _maintain(app: App, file: str | None, *arguments: str) -> dict[str, Any]:
    from airyard.sdk.config import home_folder
    from airyard.sdk.maintenance import maintain

    options = ["--config", os.path.abspath(file)] if file else []
    return maintain(home_folder(app.options.get("home")), *options, *arguments)


def _rows_text(tables: dict[str, int]) -> str:
    return formats.table(("TABLE", "ROWS"), [[name, count] for name, count in tables.items()], right=(1,))


def _kinds(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    kinds = {**(found.get("kinds") or {}), "environments": found.get("environments") or {}}
    return {
        kind: {"count": part.get("count") or 0, "bytes": part.get("bytes") or 0}
        for kind, part in kinds.items()
        if part.get("count")
    }
