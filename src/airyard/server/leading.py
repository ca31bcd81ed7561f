"""The leader's hold on the seat: renews it, says whether it counts, and ends the process that has lost it.

Owns: the renewing thread, the journal's and the log store's refusal while the seat is not held.
Must not know: HTTP, how a waiting server goes about it (``standby``).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from airyard.adapters.log_files import FileLogStore
from airyard.app.leadership import BEAT_SHARE
from airyard.app.leases import Reign
from airyard.core.errors import Conflict, Fix, Unavailable
from airyard.core.events import Recorded
from airyard.core.ids import MemberKey
from airyard.ports.journal import Changes, Journal, Stored
from airyard.ports.leadership import LeaderSeat

EXIT_REPLACED = 8
RETRY_MS = 250
LEAVE_WAIT_S = 2.0

_log = structlog.get_logger("airyard.leader")


def steady_ms() -> int:
    """Return milliseconds of a clock that nobody sets and that counts while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def not_leader(leader: str | None, why: str = "") -> Unavailable:
    """Return the answer of a server that does not lead (now).

    ``leader`` is the address of the one that does, ``why`` what keeps this one from it.
    """
    where = f"; {leader} does" if leader else why or ", and none is known that does yet"
    return Unavailable(
        f"this server does not lead{where}",
        code="NOT_LEADER",
        retry_after_ms=RETRY_MS,
        fix=Fix(
            text="ask the one that leads; a client that knows all servers (AIRYARD_HOST=A,B) finds it itself"
        ),
        details={"leader": leader},
    )


def _end_process(reason: str) -> None:
    _log.error("replaced_as_leader", reason=reason, exit=EXIT_REPLACED)
    sys.stderr.flush()
    os._exit(EXIT_REPLACED)


class Leading:
    """One term of this server. Any thread may ask; one thread renews."""

    def __init__(
        self,
        seat: LeaderSeat,
        *,
        term: int,
        lease_ms: int,
        sent_ms: int,
        replaced: Callable[[str], None] = _end_process,
        now_ms: Callable[[], int] = steady_ms,
    ) -> None:
        """``sent_ms``: when the seat was asked for; ``replaced`` is told why, and does not come back."""
        self._seat = seat
        self.term = term
        self._reign = Reign(lease_ms)
        self._reign.renewed(sent_ms)
        self._pause_s = lease_ms / BEAT_SHARE / 1000
        self._replaced = replaced
        self._now_ms = now_ms
        self._problem = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leading", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def holds(self) -> bool:
        """True while no other server can lead."""
        return self._reign.holds(self._now_ms())

    def silence(self) -> Unavailable:
        """Return what a server answers that leads no more, or does not know."""
        return not_leader(
            None, f" now: its lease on the journal is not renewed: {self._problem}" if self._problem else ""
        )

    def was_replaced(self, reason: str) -> None:
        """End: the journal has shown that another server leads."""
        self._replaced(reason)

    def stop(self) -> None:
        """Leave the seat: the next one need not wait."""
        self._ended.set()
        self._thread.join(timeout=LEAVE_WAIT_S)
        try:
            self._seat.leave(self.term)
        except Unavailable as error:
            _log.warning("seat_not_left", error=error.message)
        self._seat.close()

    def _run(self) -> None:
        held = True
        while not self._ended.wait(self._pause_s):
            sent_ms = self._now_ms()
            try:
                if not self._seat.beat(self.term):
                    self._replaced(f"term {self.term} is over: another server has taken the lead")
                    return
                self._reign.renewed(sent_ms)
                self._problem = ""
            except Unavailable as error:
                if not self._problem:
                    _log.warning("lease_not_renewed", term=self.term, error=error.message)
                self._problem = error.message
            except Exception as error:
                # A bug must not end the only thread by which this server learns that it was replaced.
                if not self._problem:
                    _log.exception("lease_not_renewed", term=self.term)
                self._problem = repr(error)
            if held and not self.holds():
                _log.warning(
                    "silent", term=self.term, reason="the lease is over; nobody is answered until renewed"
                )
            elif self.holds() and not held:
                _log.warning("leads_again", term=self.term, reason="the lease was renewed in time")
            held = self.holds()


class LedJournal:
    """A journal that is written only while the seat is held; a write that meets a newer leader ends this one."""

    def __init__(self, journal: Journal, leading: Leading) -> None:
        self._journal = journal
        self._leading = leading
        self._began = False

    def append(self, expected_seq: int, epoch: int, events: Sequence[Recorded], changes: Changes) -> None:
        """See ``Journal``. Raises: Unavailable (``NOT_LEADER``), too."""
        if not self._leading.holds():
            raise self._leading.silence()
        try:
            self._journal.append(expected_seq, epoch, events, changes)
        except Conflict as error:
            if self._began and error.code == "STALE_EPOCH":
                self._leading.was_replaced(f"{error.code}: {error.message}")
            raise
        self._began = True

    def open(self) -> Stored:
        """See ``Journal``."""
        return self._journal.open()

    @property
    def place(self) -> str:
        """See ``Journal``."""
        return self._journal.place

    def events_after(self, seq: int) -> Iterator[Recorded]:
        """See ``Journal``."""
        return self._journal.events_after(seq)

    def save_snapshot(self, seq: int, snapshot: Mapping[str, Any]) -> None:
        """See ``Journal``. Of what was committed, which stays true whoever leads."""
        self._journal.save_snapshot(seq, snapshot)

    def snapshots(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """See ``Journal``."""
        return self._journal.snapshots()

    def prune(self, before_ms: int) -> int:
        """See ``Journal``."""
        return self._journal.prune(before_ms)

    def size_bytes(self) -> int:
        """See ``Journal``."""
        return self._journal.size_bytes()

    def close(self) -> None:
        """See ``Journal``."""
        self._journal.close()


class LedLogStore(FileLogStore):
    """A log store that takes records only while the seat is held.

    It writes to files of its own term: what a stale leader had in its hands when it hung lands where nobody reads.
    """

    def __init__(self, folder: Path, leading: Leading) -> None:
        super().__init__(folder, term=leading.term)
        self._leading = leading

    def append(self, key: MemberKey, frames: bytes) -> int:
        """See ``LogStore``. Raises: Unavailable (``NOT_LEADER``), too."""
        if not self._leading.holds():
            raise self._leading.silence()
        return super().append(key, frames)
