"""The error tree and the one table that says how each kind of error is shown.

Owns: error classes, their default codes, HTTP status, CLI exit code and JSON form.
Must not know: who raises, who prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The next step: always words; a command or a patch of the workload file where one would do."""

    text: str
    command: str | None = None
    patch: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        """Return the ``fix`` object of the JSON envelope; absent parts are left out."""
        out: dict[str, Any] = {"text": self.text}
        if self.command is not None:
            out["command"] = self.command
        if self.patch is not None:
            out["patch"] = dict(self.patch)
        return out


_EXIT_CODES = {"BUDGET_SPENT": 8, "TOKEN_SPENT": 8}
"""Codes that leave with another exit code than their kind, on either side of the wire."""


class AiryardError(Exception):
    """Base of everything Airyard raises on purpose.

    ``message`` names the object, what happened and why, in one or a few sentences. ``code`` is stable and
    upper-case. ``details`` holds evidence for machines.
    """

    kind: ClassVar[str] = "INTERNAL"
    default_code: ClassVar[str] = "INTERNAL_ERROR"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 7
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        fix: Fix | str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after_ms: int | None = None,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.fix = Fix(text=fix) if isinstance(fix, str) else fix
        self.details: dict[str, Any] = dict(details or {})
        self.retry_after_ms = retry_after_ms
        exit_code = exit_code if exit_code is not None else _EXIT_CODES.get(self.code)
        if exit_code is not None:
            self.exit_code = exit_code  # type: ignore[misc]  # one failure may deserve a finer exit code

    def as_json(self) -> dict[str, Any]:
        """Return the ``error`` object of the JSON envelope (and, with ``error_code``, of the wire)."""
        return {
            "code": self.code,
            "kind": self.kind,
            "message": self.message,
            "retryable": self.retryable,
            "retry_after_ms": self.retry_after_ms,
            "fix": self.fix.as_json() if self.fix else None,
            "details": self.details,
        }


class UserError(AiryardError):
    """The request or a file is wrong; asking again unchanged cannot help."""

    kind = "PERMANENT"
    default_code = "INVALID_ARGS"
    http_status = 400
    exit_code = 2


class NotFound(AiryardError):
    """The named object does not exist, or not any more."""

    kind = "NOT_FOUND"
    default_code = "NOT_FOUND"
    http_status = 404
    exit_code = 3


class Conflict(AiryardError):
    """The request contradicts what is already there (an idempotency key, a lock, a live run)."""

    kind = "PERMANENT"
    default_code = "CONFLICT"
    http_status = 409
    exit_code = 2


class Denied(AiryardError):
    """The caller is unknown or has no right to do this."""

    kind = "PERMANENT"
    default_code = "DENIED"
    http_status = 403
    exit_code = 4


class Unavailable(AiryardError):
    """Something needed is away or full for now; the same request may succeed later."""

    kind = "TRANSIENT"
    default_code = "UNAVAILABLE"
    http_status = 503
    exit_code = 5
    retryable = True


class InvariantBroken(AiryardError):
    """The program contradicted itself: a bug in Airyard, never the user's fault."""

    default_code = "INVARIANT_BROKEN"


KINDS: tuple[type[AiryardError], ...] = (UserError, NotFound, Conflict, Denied, Unavailable, InvariantBroken)
_BY_STATUS: dict[int, type[AiryardError]] = {
    400: UserError, 401: Denied, 403: Denied, 404: NotFound, 409: Conflict, 413: UserError, 422: UserError,
    429: Unavailable, 502: Unavailable, 503: Unavailable, 504: Unavailable, 507: Unavailable,
}  # fmt: skip


def from_json(status: int, body: Mapping[str, Any]) -> AiryardError:
    """Rebuild the error that a server sent: ``body`` is its JSON, ``status`` the HTTP status."""
    error = body.get("error") if isinstance(body.get("error"), Mapping) else body
    assert isinstance(error, Mapping)
    fix = error.get("fix")
    cls = _BY_STATUS.get(status, AiryardError)
    return cls(
        str(error.get("message") or f"the server answered with HTTP status {status}"),
        code=str(error.get("code") or body.get("error_code") or cls.default_code),
        fix=Fix(text=str(fix.get("text", "")), command=fix.get("command"), patch=fix.get("patch"))
        if isinstance(fix, Mapping)
        else None,
        details=error.get("details") if isinstance(error.get("details"), Mapping) else None,
        retry_after_ms=error.get("retry_after_ms"),
    )
