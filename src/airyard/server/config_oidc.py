"""The part of the configuration about logins: people at an OpenID provider, jobs with tokens of another system.

Owns: the keys of ``[people.oidc]``, their checks and defaults. Must not know: how a login goes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from airyard.core.access.logins import LoginRules
from airyard.core.access.roles import Role
from airyard.core.errors import UserError

Word = Annotated[str, Field(min_length=1, max_length=500)]
RoleName = Literal["viewer", "user", "operator", "admin"]


class ServiceTrust(BaseModel):
    """Jobs of another system that count as a service of the users file: ``subject`` may hold ``*``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: Word
    audience: Word
    subject: Word
    user: Word

    @field_validator("subject")
    @classmethod
    def _some(cls, value: str) -> str:
        if not value.strip("*?"):
            raise ValueError("it would fit everybody whom that provider knows; name a project or an account")
        return value


class OidcSection(BaseModel):
    """A provider at which people log in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: Word | None = None
    client_id: Word | None = None
    client_secret_file: str | None = None
    """A file of its owner's alone; None: the provider knows this server as a public client."""
    audience: Word | None = None
    """What ID tokens are for, where it is not the client's id."""
    scopes: tuple[Word, ...] = ("profile", "email")
    ca_file: str | None = None
    user_claim: Word = "preferred_username"
    groups_claim: Word = "groups"
    roles: dict[Word, RoleName] = {}
    default_role: RoleName | Literal["none"] = "user"
    allowed_groups: tuple[Word, ...] = ()
    allowed_domains: tuple[Word, ...] = ()
    token_hours: Annotated[float, Field(gt=0, le=31 * 24)] = 12
    services: tuple[ServiceTrust, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> OidcSection:
        if (self.issuer is None) != (self.client_id is None):
            raise ValueError("issuer and client_id go together")
        if self.issuer is None and not self.services:
            raise ValueError("name an issuer and client_id, or [[people.oidc.services]]")
        return self

    def rules(self) -> LoginRules:
        """Return the section as the rules that claims are read by."""
        return LoginRules(
            user_claim=self.user_claim,
            groups_claim=self.groups_claim,
            roles={group: Role(role) for group, role in self.roles.items()},
            default_role=None if self.default_role == "none" else Role(self.default_role),
            groups=frozenset(self.allowed_groups),
            domains=frozenset(domain.lower() for domain in self.allowed_domains),
        )

    def beside(self, folder: Path) -> OidcSection:
        """Return the same with files that are named relative to the configuration's folder."""
        files = {
            name: None if value is None else str(folder / Path(value).expanduser())
            for name, value in (("client_secret_file", self.client_secret_file), ("ca_file", self.ca_file))
        }
        return self.model_copy(update=files)


def read_secret(file: str | None) -> str | None:
    """Return the client's secret. Raises: UserError (``BAD_SECRET_FILE``) for a file that others can read."""
    if file is None:
        return None
    path = Path(file)
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}", code="BAD_SECRET_FILE") from error
    if mode & 0o077 or not text:
        raise UserError(
            f"{path} holds the secret of a login client: "
            + ("it is empty" if not text else f"others may read it (mode {mode & 0o777:03o})"),
            code="BAD_SECRET_FILE",
            fix=f"chmod 600 {path}",
        )
    return text
