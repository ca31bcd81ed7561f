"""``airyard login``: a token of this yard for somebody whom its login provider knows."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.core.errors import Denied, UserError

if TYPE_CHECKING:
    from airyard.sdk.logins import Logins

PATIENCE_S = 600.0


@verb("login")
@click.option("--device", is_flag=True, help="Log in on another device: for a terminal without a browser.")
@click.option("--no-open", is_flag=True, help="Print the address for a browser of this machine; open none.")
@click.option(
    "--job-token",
    type=click.File("r"),
    metavar="FILE",
    help="A token that a CI system signed for its job (-: stdin).",
)
@click.option("--insecure", is_flag=True, help="Also without TLS, in a network that nobody else is in.")
def command(app: App, device: bool, no_open: bool, job_token: TextIO | None, insecure: bool) -> None:
    """Log in to the yard at its login provider. The token is kept in the data folder until it ends.

    \b
    airyard --host https://yard:8443 login
    airyard login --device
    """
    from airyard.sdk import saved_logins
    from airyard.sdk.client import Client
    from airyard.sdk.config import Target
    from airyard.sdk.logins import stranger

    target = app.client.target
    with stranger(target, plain=insecure) as client:
        logins = client.logins
        ways = logins.ways()
        if job_token is not None:
            made = logins.service(job_token.read().strip())
        elif not ways["person"]:
            raise UserError("This yard lets jobs log in, and no people.", code="LOGIN_WAY_MISSING")
        elif device or not (no_open or _has_browser()):
            made = _on_another_device(app, logins)
        else:
            made = _in_a_browser(app, logins, opens=not no_open)
    assert target.host is not None
    token = made["token"]
    expires_ms = int(formats.parse_time(token["expires_at"]).timestamp() * 1000)
    entry = {
        "token": made["secret"],
        "token_id": token["token_id"],
        "user": token["user"],
        "expires_ms": expires_ms,
    }
    before = saved_logins.token_for(target.home, target.host)
    file = saved_logins.save(target.home, target.host, entry)
    with Client(target=Target(home=target.home, host=target.host, token=made["secret"])) as known:
        me = known.who_am_i()
    if app.as_json:
        app.console.data({"host": target.host, "file": str(file), **me})
        return
    groups = f", {', '.join(me['groups'])}" if me["groups"] else ""
    app.console.text(
        f"logged in to {target.host} as {me['name']} ({me['role']}{groups}) until {formats.moment(me['expires_at'])}"
    )
    if target.token is not None and target.token not in (before, made["secret"]):
        _say_what_wins(app, target.origin)


def _say_what_wins(app: App, origin: str) -> None:
    if os.environ.get("AIRYARD_TOKEN"):
        app.console.note("AIRYARD_TOKEN is set, and goes before this login: unset it")
    elif origin == "config.toml" or origin.startswith("profile"):
        app.console.note("config.toml has a token for this server, which goes before this login: take it out")


def _in_a_browser(app: App, logins: Logins, *, opens: bool) -> dict[str, Any]:
    from airyard.sdk.loopback import Loopback, state_of

    back = Loopback()
    with back.listening():
        begun = logins.browser(back.port)
        url = str(begun["url"])
        back.state = state_of(url)
        if opens and _opened(url):
            app.console.note("a browser has been opened; without one, `airyard login --device`")
        else:
            app.console.note(f"open this address in a browser of this machine:\n  {url}")
        answer = back.wait(min(PATIENCE_S, float(begun["expires_s"])))
    if answer is None:
        raise _nobody_came()
    return logins.finish(begun["handle"], **answer)


def _on_another_device(app: App, logins: Logins) -> dict[str, Any]:
    begun = logins.device()
    app.console.note(
        f"on any device open {begun['verification_uri']} and enter the code {begun['user_code']}"
        + (f"\nor open {begun['verification_uri_complete']}" if begun["verification_uri_complete"] else "")
    )
    end_s = time.monotonic() + float(begun["expires_s"])
    wait_s = float(begun["interval_s"])
    while time.monotonic() < end_s:
        time.sleep(wait_s)
        found = logins.poll(begun["handle"])
        if found["secret"] is not None:
            return found
        wait_s = max(float(found["wait_s"]), 0.2)
    raise _nobody_came()


def _has_browser() -> bool:
    """True when a browser opened here would be seen by who types this."""
    if os.environ.get("BROWSER"):
        return True
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _opened(url: str) -> bool:
    import webbrowser

    if not url.startswith(("https://", "http://")):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def _nobody_came() -> Denied:
    return Denied(
        "Nobody finished the login in time.", code="LOGIN_EXPIRED", fix="Begin again: `airyard login`."
    )
