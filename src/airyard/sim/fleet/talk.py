"""A simulated runner's three conversations with the server: orders in, reports out, logs out.

Owns: their repetition, the translation of answers into events; what ``node.runner_threads`` does with three threads.
Must not know: what the events do.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from airyard.core.versions import RUNNER
from airyard.node import machine_events as m
from airyard.node.lease import is_stale, pace_of
from airyard.node.runner_http import Servers
from airyard.node.runner_threads import closed_output
from airyard.node.spool import LogSpool
from airyard.node.steady_clock import SteadyClock
from airyard.sim.fleet.network import Away, Channel, Network

OVER = 410
CONFLICT = 409
REPORT_TIMEOUT_S = 30.0
LOGS_TIMEOUT_S = 60.0
BATCH_BYTES = 8 << 20
_QUICK_S = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 2.0

Tell = Callable[[m.Event], None]


class Patience:
    """Pauses that grow while the server is away: 20 ms, doubling to 2 s."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_PAUSE_S

    async def wait(self, at_most_s: float = _LONGEST_PAUSE_S) -> None:
        """Sleep for the next pause."""
        self._pause_s = min(at_most_s, self._pause_s)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)

    def reset(self) -> None:
        """Begin anew after an answer."""
        self._pause_s = _FIRST_PAUSE_S


class Talk:
    """The conversations of one runner, a connection each."""

    def __init__(
        self, network: Network, servers: Servers, token: str, epoch: int, spool: LogSpool, tell: Tell
    ) -> None:
        self._servers = servers
        self._orders, self._reports, self._logs = (Channel(network, servers, token) for _ in range(3))
        self._epoch = epoch
        self._spool = spool
        self._tell = tell
        self._outbox: tuple[m.Report, ...] = ()
        self._said = asyncio.Event()
        self._printed = asyncio.Event()

    def close(self) -> None:
        """Cut all connections."""
        for channel in (self._orders, self._reports, self._logs):
            channel.close()

    def offer(self, outbox: tuple[m.Report, ...]) -> None:
        """Replace what is to be posted."""
        self._outbox = outbox
        self._said.set()

    def output(self) -> None:
        """Say that the spool has more."""
        self._printed.set()

    def seal(self) -> None:
        """Say that the spool gets no more."""
        self._spool.seal()
        self._printed.set()

    async def poll(self, clock: SteadyClock) -> None:
        """Ask for orders by long poll until the attempt is over; each answer renews the lease."""
        last = epoch = 0
        lease_s: float | None = None
        patience = Patience()
        while True:
            sent_ms, begun_s, pace = clock.now_ms(), time.monotonic(), pace_of(lease_s)
            held = f"&lease_s={lease_s:g}" if lease_s is not None else ""
            path = f"orders?after={last}&wait_s={pace.wait_s:g}&epoch={epoch}{held}&protocol={RUNNER.newest}"
            try:
                status, answer = await self._orders.call("GET", path, timeout_s=pace.timeout_s)
            except Away:
                await patience.wait(pace.pause_s)
                continue
            if status == OVER:
                self._tell(m.AttemptOver())
                return
            spoken = int(answer.get("epoch") or 0)
            if status != 200 or is_stale(spoken, epoch):
                await patience.wait(pace.pause_s)
                continue
            epoch = max(epoch, spoken)
            self._servers.answered(answer.get("protocol"))
            self._servers.learn(answer.get("servers") or [])
            self._tell(m.ServerAnswered(sent_ms=sent_ms, epoch=spoken))
            orders = sorted(answer.get("orders") or [], key=lambda order: int(order["number"]))
            for order in orders:
                body = {name: value for name, value in order.items() if name not in ("number", "kind")}
                number, kind = int(order["number"]), str(order["kind"])
                self._tell(m.OrderReceived(number=number, kind=kind, body=body, epoch=spoken))
                last = max(last, number)
                lease_s = float(body["seconds"]) if kind == "LEASE" else lease_s
            if any(int(order["number"]) for order in orders) or time.monotonic() - begun_s > _QUICK_S:
                patience.reset()
            else:
                await patience.wait()

    async def report(self, clock: SteadyClock) -> None:
        """Post the outbox until the server has journalled it."""
        patience, acknowledged = Patience(), 0
        while True:
            while not (waiting := [one for one in self._outbox if one.number > acknowledged]):
                self._said.clear()
                await self._said.wait()
            body = {
                "protocol": self._servers.spoken,
                "epoch": self._epoch,
                "sent_ns": clock.now_ns(),
                "reports": [report.as_json() for report in waiting],
            }
            try:
                status, answer = await self._reports.call(
                    "POST", "reports", _json(body), timeout_s=REPORT_TIMEOUT_S
                )
            except Away:
                await patience.wait()
                continue
            if status == OVER:
                self._tell(m.AttemptOver())
                return
            number = int(answer.get("acknowledged") or 0) if status == 200 else 0
            if number >= waiting[-1].number:
                patience.reset()
            else:
                await patience.wait()
            acknowledged = max(acknowledged, number)
            self._tell(m.ReportAcknowledged(number=number))

    async def ship(self, clock: SteadyClock) -> None:
        """Ship the spool as it fills; when it is sealed and the server has all of it, say so."""
        patience = Patience()
        while True:
            if self._spool.is_drained:
                if self._spool.is_sealed:
                    break
                self._printed.clear()
                await self._printed.wait()
                continue
            status = await send_batch(self._logs, self._spool)
            if status == OVER:
                self._tell(m.AttemptOver())
                return
            if status == 200:
                patience.reset()
            else:
                await patience.wait()
        self._tell(closed_output(self._spool))
        self._tell(m.LogsShipped())


async def send_batch(channel: Channel, spool: LogSpool) -> int:
    """Send the next batch of a spool; return 200 when the server and it know what the server has, 0 when away."""
    try:
        status, answer = await channel.call(
            "POST", "logs", spool.batch(BATCH_BYTES), timeout_s=LOGS_TIMEOUT_S
        )
    except Away:
        return 0
    if status == CONFLICT and "next" in answer:
        spool.resync(int(answer["next"]))
        return 200
    if status == 200:
        spool.acknowledge(int(answer["next"]))
    return status


async def close_log(channel: Channel, number: int, last_seq: int, sha256: str) -> int:
    """Say LOGS_CLOSED for a runner that is dead; return the status, 0 when away."""
    now_ns = time.time_ns()
    said = {"number": number, "kind": "LOGS_CLOSED", "at_ns": now_ns, "last_seq": last_seq, "sha256": sha256}
    body = {"protocol": channel.servers.spoken, "epoch": 0, "sent_ns": now_ns, "reports": [said]}
    try:
        status, _ = await channel.call("POST", "reports", _json(body), timeout_s=LOGS_TIMEOUT_S)
    except Away:
        return 0
    return status


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
