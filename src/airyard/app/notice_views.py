"""Messages as documents.

Owns: the NotificationDoc. Must not know: where messages are kept, HTTP.
"""

from __future__ import annotations

from airyard.app.views import Document, rfc3339
from airyard.core.notify import shown_target
from airyard.ports.notice_store import Message, MessageState


def notification_document(message: Message) -> Document:
    """Return what is shown of a message: neither its body nor the secret part of its address."""
    waits = message.state is MessageState.WAITING
    return {
        "id": message.message_id,
        "kind": message.kind,
        "at": rfc3339(message.at_ms),
        "run_id": message.run_id,
        "to": shown_target(message.target),
        "state": message.state.value,
        "tries": message.tries,
        "next_at": rfc3339(message.next_ms or None) if waits else None,
        "ended_at": rfc3339(message.ended_ms),
        "error": message.error or None,
    }
