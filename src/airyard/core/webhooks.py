"""How a webhook is signed, when it is tried again, and what an answer means.

Owns: these three, as Standard Webhooks has them. Must not know: sockets, where messages are kept.
Source: the Standard Webhooks specification 1.0 (headers, ``v1`` signatures, ``whsec_`` secrets).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from enum import Enum

FIRST_PAUSE_MS = 5_000
LONGEST_PAUSE_MS = 3_600_000
GIVE_UP_AFTER_MS = 24 * 3_600_000
"""A message that is older than this and fails once more is given up."""
_TRY_AGAIN = frozenset({408, 425, 429})
_PREFIX = "whsec_"


class Verdict(Enum):
    """What an answer means for the message."""

    DELIVERED = "DELIVERED"
    AGAIN = "AGAIN"
    NEVER = "NEVER"
    """The receiver does not want it, or it must not be sent there: the same would be said again."""


def signing_key(secret: str) -> bytes:
    """Return the key that a secret stands for: Base64 behind ``whsec_``, else the text itself."""
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            pass  # a secret of one's own that happens to begin so
    return secret.encode()


def headers_of(message_id: str, at_s: int, body: bytes, secret: str | None) -> dict[str, str]:
    """Return the headers by which a receiver knows a message, and with a secret that it is genuine.

    ``at_s``: when this try is made; a receiver refuses old ones.
    """
    headers = {"webhook-id": message_id, "webhook-timestamp": str(at_s)}
    if secret:
        signed = f"{message_id}.{at_s}.".encode() + body
        digest = hmac.new(signing_key(secret), signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def pause_ms(tries: int, chance: float) -> int:
    """Return how long to wait after so many failed tries (from 1): doubled each time, half of it by chance (0 to 1)."""
    whole = min(FIRST_PAUSE_MS << min(max(tries, 1) - 1, 20), LONGEST_PAUSE_MS)
    return whole // 2 + int(whole / 2 * chance)


def verdict_of(status: int) -> Verdict:
    """Return what a status says. A redirect is a refusal: it could lead where messages must not go."""
    if 200 <= status < 300:
        return Verdict.DELIVERED
    if status in _TRY_AGAIN or status >= 500:
        return Verdict.AGAIN
    return Verdict.NEVER


def next_try_ms(made_ms: int, now_ms: int, tries: int, chance: float) -> int | None:
    """Return when a message of ``made_ms`` is tried again after a failure; None when it is given up."""
    due_ms = now_ms + pause_ms(tries, chance)
    return due_ms if due_ms < made_ms + GIVE_UP_AFTER_MS else None
