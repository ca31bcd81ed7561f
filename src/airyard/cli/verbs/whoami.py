"""``airyard whoami``: who one is in this yard, and how it knows."""

from __future__ import annotations

from typing import Any

from airyard.cli import formats
from airyard.cli.app import App, verb


@verb("whoami")
def command(app: App) -> None:
    """Show your name, role and groups here, and by what you are known."""
    found = app.client.who_am_i()
    if app.as_json:
        app.console.data(found)
        return
    pairs: list[tuple[str, object]] = [
        ("user", f"{found['name']} ({found['role']})"),
        ("groups", ", ".join(found["groups"]) or "none"),
        ("known by", _how(found)),
    ]
    if found["project"]:
        pairs.append(("project", f"{found['project']} alone"))
    if found["expires_at"]:
        pairs.append(("until", formats.moment(found["expires_at"])))
    app.console.text(formats.fields(pairs))


def _how(found: dict[str, Any]) -> str:
    token = f"token {found['token_id']} ({found['token_name']}; {found['kind']}, {found['scope']})"
    match found["how"]:
        case "owner":
            return "the token of the yard's owner"
        case "login":
            return f"a login at {found['issuer']}, {token}"
        case "job":
            return f"{found['subject']} of {found['issuer']}, {token}"
    return token
