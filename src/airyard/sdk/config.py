"""Which server a client talks to, with which token, and where its data folder is.

Owns: the order flag > environment > config.toml > embedded, and the profiles.
Must not know: HTTP, how the embedded server is started.

The client's part of ``AIRYARD_HOME/config.toml``::

    [client]
    host = "https://yard.example.org"
    token_file = "~/.airyard/yard.token"     # or: token = "..."

    [client.profiles.lab]
    host = "http://lab:8765"
    token = "..."
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airyard.core.errors import UserError
from airyard.sdk import saved_logins

DEFAULT_HOME = "~/.airyard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go. ``host`` None is the embedded server of ``home``."""

    home: Path
    host: str | None = None
    token: str | None = field(default=None, repr=False)
    origin: str = "embedded"
    """What decided: ``--host``, ``AIRYARD_HOST``, ``config.toml``, ``profile NAME`` or ``embedded``."""


def resolve(
    *,
    host: str | None = None,
    token: str | None = None,
    profile: str | None = None,
    home: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Target:
    """Decide the target; arguments that are None were not given.

    Raises: UserError for a profile that does not exist, a host beside a profile, or a broken config.toml.
    """
    folder = home_folder(home, environ)
    if profile is not None:
        if host is not None:
            raise UserError(
                "A host and a profile were both given; a profile names its host.", code="BAD_HOST"
            )
        return _profile(profile, folder, token, environ)
    token = token or environ.get("AIRYARD_TOKEN") or None
    for value, origin in ((host, "--host"), (environ.get("AIRYARD_HOST"), "AIRYARD_HOST")):
        if value:
            return Target(home=folder, host=value, token=token or _token_for(value, folder), origin=origin)
    client = _table(_read_toml(folder / "config.toml"), "client")
    if client.get("host"):
        return Target(
            home=folder,
            host=str(client["host"]),
            token=token or _token_of(client) or saved_logins.token_for(folder, str(client["host"])),
            origin="config.toml",
        )
    return Target(home=folder, token=token)


def home_folder(home: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the data folder as an absolute path: argument > ``AIRYARD_HOME`` > ``~/.airyard``."""
    return Path(os.path.abspath(os.path.expanduser(home or environ.get("AIRYARD_HOME") or DEFAULT_HOME)))


def local_token(home: Path) -> str | None:
    """Return the owner's token of the embedded server, None while there is none."""
    try:
        return (home / "server" / "token").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def _token_for(host: str, home: Path) -> str | None:
    """A host that was named without a token: the configured one's, that of a login, else the embedded server's own.

    Trying is safe: the server proves that it knows the token before the token is sent.
    """
    client = _table(_read_toml(home / "config.toml"), "client")
    saved = saved_logins.token_for(home, host)
    if str(client.get("host", "")).rstrip("/") == host.rstrip("/"):
        return _token_of(client) or saved
    return saved or local_token(home)


def _profile(name: str, home: Path, token: str | None, environ: Mapping[str, str]) -> Target:
    profiles = _table(_table(_read_toml(home / "config.toml"), "client"), "profiles")
    found = _table(profiles, name)
    if not found:
        found = _databricks_profile(name, environ)
    if not found.get("host"):
        known = ", ".join(sorted(profiles)) or "none"
        raise UserError(
            f"There is no profile {name!r} with a host (profiles in {home / 'config.toml'}: {known}).",
            code="NO_PROFILE",
            fix=f"Add [client.profiles.{name}] with host and token to config.toml.",
        )
    secret = token or _token_of(found) or environ.get("AIRYARD_TOKEN")
    secret = secret or saved_logins.token_for(home, str(found["host"]))
    return Target(home=home, host=str(found["host"]), token=secret or None, origin=f"profile {name}")


def _databricks_profile(name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read ``~/.databrickscfg``: only because the user named this profile."""
    from configparser import ConfigParser, Error

    path = os.path.expanduser(environ.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg")
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (Error, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.", code="BAD_CONFIG") from None
    found = dict(parser.defaults()) if name == "DEFAULT" else {}
    if parser.has_section(name):
        found = dict(parser[name])
    if not found:
        return {}
    found.setdefault("host", environ.get("DATABRICKS_HOST", ""))
    found.setdefault("token", environ.get("DATABRICKS_TOKEN", ""))
    return found


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.", code="BAD_CONFIG") from None
    import tomllib

    try:
        return tomllib.loads(text.decode())
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}.", code="BAD_CONFIG") from None


def _table(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _token_of(table: Mapping[str, Any]) -> str | None:
    if table.get("token"):
        return str(table["token"])
    if not table.get("token_file"):
        return None
    path = os.path.expanduser(str(table["token_file"]))
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError) as error:
        raise UserError(f"The token file {path} cannot be read: {error}.", code="BAD_CONFIG") from None
