"""The server's keeper of leases: grants them, says once a second who is surely over, holds them for a planned stop.

Owns: the thread, the journal's word on leases, how long a stop waits. Must not know: who is over (``app.leases``),
HTTP.
"""

from __future__ import annotations

import threading
import time

import structlog

from airyard.app.changes import ChangeFeed
from airyard.app.control import Control
from airyard.app.leases import HOLD_S, Leases
from airyard.app.loop import ControlLoop
from airyard.core.commands import DeclareLease
from airyard.core.errors import AiryardError
from airyard.ports.clock import Clock
from airyard.server.leading import steady_ms

LOOK_S = 1.0
ANSWER_S = 30.0
HOLD_ANSWER_S = 5.0
HOLD_WAIT_S = 10.0
"""Runners ask every few seconds: who has not taken the hold by then cannot be reached."""
PAUSE_S = 0.05

_log = structlog.get_logger("airyard.leases")


class LeaseKeeper:
    """Keeps the leases of one leader. Made once the journal is taken over, and before any runner is answered."""

    def __init__(
        self,
        loop: ControlLoop,
        clock: Clock,
        changes: ChangeFeed,
        lease_s: float,
        *,
        silent_ms: int | None = None,
    ) -> None:
        """Journal what is granted from now on. Raises: AiryardError when it cannot be written.

        ``silent_ms``, by CLOCK_BOOTTIME, is since when no earlier leader has granted anything; None: since now.
        """
        self._loop = loop
        self._clock = clock
        self._changes = changes
        lease_ms = int(lease_s * 1000)
        begun_ms = clock.monotonic_ms() - (max(0, steady_ms() - silent_ms) if silent_ms is not None else 0)
        epoch, longest_ms = loop.query(_epoch_and_longest).result(timeout=ANSWER_S)
        loop.submit(DeclareLease(lease_ms=lease_ms, begins=True)).result(timeout=ANSWER_S)
        self.leases = Leases(epoch=epoch, lease_ms=lease_ms, longest_ms=longest_ms, begun_ms=begun_ms)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LOOK_S)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self._look()
            except AiryardError as error:
                # It is said again a second later, and nobody is answered meanwhile.
                _log.warning("lease_not_ended", error=error.message)
            except Exception:
                _log.exception("leases_broke")

    def _look(self) -> None:
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        for gone in self._loop.peek(lambda control: self.leases.overdue(control.state, now_ms, wall_ms)):
            _log.warning(
                "lease_over", member=str(gone.seen.key), message=gone.seen.exit and gone.seen.exit.message
            )
            self._loop.submit(gone)
        if self.leases.settles(now_ms):
            self._loop.submit(DeclareLease(lease_ms=self.leases.lease_ms, settled=True))

    def hold(self) -> None:
        """Before a planned stop: grant an hour, and wait until those who can be reached count it. Blocks."""
        live = self._loop.peek(lambda control: [run.run_id for run, _ in control.state.live_attempts()])
        if not live:
            return
        hold_ms = int(HOLD_S * 1000)
        try:
            self._loop.submit(DeclareLease(lease_ms=hold_ms)).result(timeout=HOLD_ANSWER_S)
        except (AiryardError, TimeoutError) as error:
            # What the journal does not know no later leader would wait for.
            _log.warning("no_hold_granted", error=str(error))
            return
        self.leases.hold(hold_ms)
        self._changes.publish(live)
        deadline_s = time.monotonic() + HOLD_WAIT_S
        while (left := self._loop.peek(lambda control: self.leases.unheld(control.state))) and (
            time.monotonic() < deadline_s
        ):
            time.sleep(PAUSE_S)
        _log.info("hold_granted", seconds=HOLD_S, unreached=[str(key) for key in left])


def _epoch_and_longest(control: Control) -> tuple[int, int]:
    return control.state.epoch, control.state.lease_longest_ms
