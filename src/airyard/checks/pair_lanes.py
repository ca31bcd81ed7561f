"""The adapters of two machines one by one, as a part of a pair test: the same exchange as for the pair, but shorter.

Owns: how long each may take, that a slow one is measured again. Must not know: which adapters correspond, what is slow
enough to fail.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from airyard.checks import pair_child
from airyard.core.health.adapters import LaneRead, is_slow

BUDGET_S = 20.0
"""All of them; what is not reached by then is not told."""
ONE_S = 4.0
"""One exchange is cut off after this."""
CONNECT_S = 2.0
SECONDS = 0.4
OCTETS = 4 << 20
PINGS = 5


class Answering:
    """Answers on a port of its own, on a thread, whoever knows the token."""

    def __init__(self, host: str, token: bytes, options: argparse.Namespace) -> None:
        self._listener = socket.create_server((host, 0))
        self._token = token
        self._faults = pair_child.Faults(options)
        self._over = False
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._run, name="lanes", daemon=True).start()

    def _run(self) -> None:
        while not self._over:
            with suppress(OSError):  # one lane that broke off says nothing of the next
                pair_child.serve(self._listener, self._token, OCTETS, self._faults, idle_s=CONNECT_S)

    def close(self) -> None:
        """Answer nobody any more."""
        self._over = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def measure(
    lanes: Sequence[Mapping[str, Any]], port: int, token: bytes, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measure each lane towards a side that answers; what looks slow or away twice. Blocks, ``BUDGET_S`` at most."""
    until = time.monotonic() + BUDGET_S - ONE_S - CONNECT_S
    reads: dict[int, LaneRead] = {}
    for again in (False, True):
        for place, lane in enumerate(lanes):
            if time.monotonic() >= until:
                break
            if not again:
                reads[place] = _one(lane, port, token, options)
            elif place in reads and is_slow(reads[place], [*reads.values()]):
                reads[place] = max(reads[place], _one(lane, port, token, options), key=lambda one: one.gb_s)
    return [asdict(one) for one in reads.values()]


def _one(lane: Mapping[str, Any], port: int, token: bytes, options: argparse.Namespace) -> LaneRead:
    read = LaneRead(
        a=str(lane["theirs"]), b=str(lane["mine"]), kind=str(lane["kind"]), rail=str(lane.get("rail", ""))
    )
    try:
        link = pair_child.connected(
            str(lane["host"]), port, token, CONNECT_S, source=str(lane["source"]), idle_s=ONE_S
        )
    except OSError as error:
        return replace(read, problem=f"no connection ({type(error).__name__})")
    cut = threading.Timer(ONE_S, _cut, (link,))
    cut.daemon = True
    cut.start()
    try:
        with link:
            said = pair_child.call(link, OCTETS, PINGS, SECONDS, pair_child.Faults(options))
        return replace(read, gb_s=float(said["busbw_gb_s"]))
    except OSError:
        return replace(read, problem=f"{2 * OCTETS >> 20} MiB did not pass within {ONE_S:.0f} s")
    finally:
        cut.cancel()


def _cut(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
