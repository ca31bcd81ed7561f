"""Messages that are to be delivered, kept beside the journal that they follow. Any thread.

Owns: the record of a message, and what its store promises. Must not know: SQL, how messages are made or sent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from airyard.core.events import Recorded


class MessageState(Enum):
    """Where a message is in its life."""

    WAITING = "WAITING"
    DELIVERED = "DELIVERED"
    GIVEN_UP = "GIVEN_UP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message to one receiver. ``message_id`` and ``body`` are the same in every try."""

    message_id: str
    seq: int
    """The event that it follows."""
    at_ms: int
    kind: str
    run_id: int | None
    """None: it is about the yard, and its receiver stands in the configuration."""
    target: str
    """An address, or the name of the secret that holds it."""
    queue: str
    """Messages of one queue are sent one after the other: its owner, the receiver's host, a mark of the address."""
    secret: str | None
    """The run's secret (``scope/key``) that signs it."""
    body: str
    state: MessageState = MessageState.WAITING
    tries: int = 0
    next_ms: int = 0
    error: str = ""
    """What the last try met; no secret stands in it."""
    ended_ms: int | None = None


class NoticeStore(Protocol):
    """The journal's events behind a mark, and the messages made of them. Bounded."""

    def cursor(self) -> int:
        """Return the last event whose messages are kept."""
        ...

    def events_after(self, seq: int, kinds: Collection[str], limit: int) -> tuple[Sequence[Recorded], int]:
        """Return the next events of these kinds in order, and up to which event all have been looked at."""
        ...

    def keep(self, messages: Sequence[Message], cursor: int) -> None:
        """Add messages and move the mark, all or nothing; one that is there already stays as it is."""
        ...

    def queues(self) -> dict[str, int]:
        """Return how many messages wait in each queue."""
        ...

    def due(self, queue: str, now_ms: int) -> Message | None:
        """Return the oldest message of a queue that is to be sent now."""
        ...

    def note(self, message: Message) -> None:
        """Replace what is known of a message's tries."""
        ...

    def of_run(self, run_id: int) -> Sequence[Message]:
        """Return what is kept of one run's messages, oldest first."""
        ...

    def newest(self, state: MessageState | None, limit: int) -> Sequence[Message]:
        """Return the newest messages, of one state or of all, newest first."""
        ...

    def counts(self) -> dict[str, int]:
        """Return how many messages are kept in each state."""
        ...
