"""The runner's three conversations with the server: orders in, reports out, logs out.

Owns: their threads, their repetition, the translation of answers into events.
Must not know: what the events do (``machine``), processes, the attempt folder.

Each has a connection of its own, so that a large log batch delays no order. None ever gives up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from airyard.core.versions import RUNNER
from airyard.node.lease import is_stale, pace_of
from airyard.node.machine_events import (
    AttemptOver,
    Event,
    LogsShipped,
    OrderReceived,
    OutputClosed,
    Report,
    ReportAcknowledged,
    ServerAnswered,
)
from airyard.node.runner_http import AttemptIsOver, Channel, Patience, Refused, ServerAway
from airyard.node.spool import LogSpool

_REPORT_TIMEOUT_S = 30.0
_LOGS_TIMEOUT_S = 60.0
_LONGEST_LOGS_TIMEOUT_S = 480.0
_FIRST_BATCH_BYTES = 256 * 1024
_LARGEST_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_S = 1.0
"""How long a batch may take before the next one is smaller: on a slow line polls are not to wait behind megabytes."""
_IDLE_S = 30.0
_QUICK_S = 0.05

Tell = Callable[[Event], None]


class OrderPoller:
    """Asks for orders by long poll, forever; each answer renews the lease."""

    def __init__(
        self,
        channel: Channel,
        tell: Tell,
        now_ms: Callable[[], int],
        is_orphaned: Callable[[], bool],
        learn: Callable[[list[str]], None] = lambda urls: None,
        look: Callable[[int], None] = lambda number: None,
    ) -> None:
        """``is_orphaned`` says that the attempt's folder is gone, so that nobody will ever ask for it.

        ``learn`` is told the addresses of all servers, one of which leads; ``look`` that the server wants to know what
        the member is at, as a number that is another one each time.
        """
        self._look = look
        self._learn = learn
        self._channel = channel
        self._tell = tell
        self._now_ms = now_ms
        self._is_orphaned = is_orphaned

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="orders", daemon=True).start()

    def _run(self) -> None:
        last = epoch = 0
        lease_s: float | None = None
        late = False
        patience = Patience("orders")
        while True:
            sent_ms = self._now_ms()
            begun = time.monotonic()
            pace = pace_of(lease_s)
            # After a lost poll nothing is waited for there: on a slow line the way alone takes the time that is left.
            wait_s = 0.0 if late else pace.wait_s
            held = f"&lease_s={lease_s:g}" if lease_s is not None else ""
            try:
                answer = self._channel.get_json(
                    f"orders?after={last}&wait_s={wait_s:g}&epoch={epoch}{held}&protocol={RUNNER.newest}",
                    timeout_s=pace.timeout_s,
                )
            except AttemptIsOver:
                self._tell(AttemptOver())
                return
            except (ServerAway, Refused) as problem:
                if self._is_orphaned():
                    self._tell(AttemptOver())
                    return
                late = lease_s is not None
                patience.wait(problem, at_most_s=pace.pause_s)
                continue
            late = False
            spoken = int(answer.get("epoch") or 0)
            if is_stale(spoken, epoch):
                patience.wait(
                    f"a leader of epoch {spoken} answered, {epoch} has begun", at_most_s=pace.pause_s
                )
                continue
            epoch = max(epoch, spoken)
            self._learn(answer.get("servers") or [])
            if isinstance(number := answer.get("look"), int):
                self._look(number)
            self._channel.servers.answered(answer.get("protocol"))
            self._tell(ServerAnswered(sent_ms=sent_ms, epoch=spoken))
            orders = sorted(answer.get("orders") or [], key=lambda order: int(order["number"]))
            for order in orders:
                body = {name: value for name, value in order.items() if name not in ("number", "kind")}
                number, kind = int(order["number"]), str(order["kind"])
                self._tell(OrderReceived(number=number, kind=kind, body=body, epoch=spoken))
                last = max(last, number)
                lease_s = float(body["seconds"]) if kind == "LEASE" else lease_s
            if any(int(order["number"]) for order in orders) or time.monotonic() - begun > _QUICK_S:
                patience.reset()
            else:
                patience.wait()  # an answer that came at once and empty must not become a busy loop


class Reporter:
    """Posts the outbox until the server has journalled it."""

    def __init__(self, channel: Channel, tell: Tell, epoch: int, now_ns: Callable[[], int]) -> None:
        """``now_ns`` is the clock that stamps the reports: from it the server learns how it differs from its own."""
        self._channel = channel
        self._tell = tell
        self._epoch = epoch
        self._now_ns = now_ns
        self._changed = threading.Condition()
        self._outbox: tuple[Report, ...] = ()
        self._acknowledged = 0

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def offer(self, outbox: tuple[Report, ...]) -> None:
        """Replace what is to be posted."""
        with self._changed:
            self._outbox = outbox
            self._changed.notify()

    def _waiting(self) -> list[Report]:
        return [report for report in self._outbox if report.number > self._acknowledged]

    def _run(self) -> None:
        patience = Patience("reports")
        while True:
            with self._changed:
                while not (waiting := self._waiting()):
                    self._changed.wait(_IDLE_S)
            body = {
                "protocol": self._channel.servers.spoken,
                "epoch": self._epoch,
                "sent_ns": self._now_ns(),
                "reports": [report.as_json() for report in waiting],
            }
            try:
                answer = self._channel.post_json("reports", body, timeout_s=_REPORT_TIMEOUT_S)
            except AttemptIsOver:
                self._tell(AttemptOver())
                return
            except (ServerAway, Refused) as problem:
                patience.wait(problem)
                continue
            number = int(answer.get("acknowledged") or 0)
            if number >= waiting[-1].number:
                patience.reset()
            else:
                patience.wait()
            self._acknowledged = max(self._acknowledged, number)
            self._tell(ReportAcknowledged(number=number))


class LogShipper:
    """Ships the spool: at once when idle, in larger batches while a request is under way.

    Once the spool is sealed and the server has all of it, OutputClosed and LogsShipped follow.
    """

    def __init__(self, channel: Channel, tell: Tell, spool: LogSpool) -> None:
        self._channel = channel
        self._tell = tell
        self._spool = spool

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="logs", daemon=True).start()

    def _run(self) -> None:
        patience = Patience("logs")
        size, timeout_s = _FIRST_BATCH_BYTES, _LOGS_TIMEOUT_S
        while True:
            if not self._spool.wait(_IDLE_S):
                if self._spool.is_sealed:
                    break
                continue
            batch = self._spool.batch(size)
            begun = time.monotonic()
            try:
                answer = self._channel.post_bytes("logs", batch, timeout_s=timeout_s)
            except AttemptIsOver:
                self._tell(AttemptOver())
                return
            except Refused as refusal:
                if refusal.status == 409 and "next" in refusal.body:
                    self._spool.resync(int(refusal.body["next"]))
                else:
                    patience.wait(refusal)
                continue
            except ServerAway as problem:
                # The same batch is sent again, whatever its size: a line that became slow gets more time for it.
                timeout_s = min(_LONGEST_LOGS_TIMEOUT_S, 2 * timeout_s)
                patience.wait(problem)
                continue
            patience.reset()
            size, timeout_s = fitting_batch(size, len(batch), time.monotonic() - begun), _LOGS_TIMEOUT_S
            self._spool.acknowledge(int(answer["next"]))
        self._tell(closed_output(self._spool))
        self._tell(LogsShipped())


def fitting_batch(size: int, sent: int, took_s: float) -> int:
    """Return how many bytes the next batch may have: as many as the line carries in about a second."""
    if took_s > _BATCH_S:
        return max(_FIRST_BATCH_BYTES // 4, min(size, sent) // 2)
    return min(_LARGEST_BATCH_BYTES, 2 * size) if 2 * sent > size else size


def closed_output(spool: LogSpool) -> OutputClosed:
    """Return the end of the log; its hash is empty when the server has not got all of it."""
    digest = spool.digest() if spool.is_drained else None
    return OutputClosed(last_seq=spool.next_seq - 1, sha256=digest or "")
