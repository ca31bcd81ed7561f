"""``airyard logout``: ends the login at a yard."""

from __future__ import annotations

from airyard.cli.app import App, verb
from airyard.core.errors import Denied, NotFound, UserError


@verb("logout")
def command(app: App) -> None:
    """Take back the token of the login, at the server and here."""
    from airyard.sdk import saved_logins
    from airyard.sdk.client import Client
    from airyard.sdk.config import Target

    target = app.client.target
    found = saved_logins.login_at(target.home, target.host) if target.host is not None else None
    if found is None or target.host is None:
        where = f" to {target.host}" if target.host is not None else ""
        raise UserError(f"You are not logged in{where}.", code="NOT_LOGGED_IN")
    ended = True
    try:
        with Client(target=Target(home=target.home, host=target.host, token=str(found["token"]))) as client:
            client.tokens.revoke(str(found["token_id"]))
    except (Denied, NotFound):
        ended = False  # it had ended already, or (a job's) it may not end itself and does so by its time
    finally:
        # Also when the server does not answer, which is said: nobody shall use it from here any more.
        saved_logins.forget(target.home, target.host)
    if app.as_json:
        app.console.data({"host": target.host, "user": found["user"], "revoked": ended})
    else:
        app.console.text(f"logged out of {target.host}")
