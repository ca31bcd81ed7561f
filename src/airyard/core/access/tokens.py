"""Tokens that people give to themselves, their agents and services; and what the runs of a token have used.

Owns: the journalled record (never the secret), when a token counts, the arithmetic of its spending.
Must not know: how secrets are made or compared. Times are milliseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

from airyard.core.access.logins import Login
from airyard.core.access.roles import Kind, Scope

HOUR_MS = 3_600_000
KEPT_MS = 30 * 24 * HOUR_MS
"""So long a token that counts no more is still listed."""
JOB_KEPT_MS = HOUR_MS
"""A job's token that is over says nothing about anybody: one comes with every job of a CI system."""
LOGIN_KEPT_MS = 3 * 24 * HOUR_MS
"""So long one of a login: there are many of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token. ``digest`` is the SHA-256 (hex) of its text, which nobody keeps."""

    token_id: str
    digest: str
    user: str
    name: str
    scope: Scope
    kind: Kind
    by: str
    created_ms: int
    project: str | None = None
    expires_ms: int | None = None
    gpu_hours: float | None = None
    """GPU-hours that runs submitted with it may use in all; None is no limit."""
    revoked_ms: int | None = None
    revoked_by: str = ""
    login: Login | None = None
    """What a provider said of the user; tokens that are made with such a one have it from there."""

    def counts(self, now_ms: int) -> bool:
        """True while it is neither revoked nor expired."""
        return self.revoked_ms is None and (self.expires_ms is None or now_ms < self.expires_ms)

    def forgettable(self, now_ms: int) -> bool:
        """True when it has not counted for so long that nobody asks for it any more."""
        ends = [end for end in (self.revoked_ms, self.expires_ms) if end is not None]
        return bool(ends) and now_ms >= min(ends) + self._kept_ms()

    def _kept_ms(self) -> int:
        if self.login is None:
            return KEPT_MS
        return JOB_KEPT_MS if self.login.role is None else LOGIN_KEPT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Device time of a token's runs: ``used_ms`` device-milliseconds by ``at_ms``; since then ``devices`` are held."""

    at_ms: int
    devices: int = 0
    used_ms: int = 0

    def changed(self, now_ms: int, devices: int) -> Spent:
        """Return the same after ``devices`` more (or, negative, fewer) are held from ``now_ms`` on."""
        at_ms = max(now_ms, self.at_ms)
        return Spent(
            at_ms=at_ms,
            devices=max(self.devices + devices, 0),
            used_ms=self.used_ms + self.devices * (at_ms - self.at_ms),
        )

    def hours(self, now_ms: int) -> float:
        """Return the GPU-hours used by now."""
        return self.changed(now_ms, 0).used_ms / HOUR_MS
