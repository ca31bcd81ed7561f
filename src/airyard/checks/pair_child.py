"""One side of a pair test over TCP: latency of small messages, bandwidth in both directions, content compared.

Owns: the exchange. Must not know: Airyard: the file stands alone, and any Python 3.11 runs it on any node. The last
line of its output is one JSON object. Both sides know a token, so that nobody else is answered. Faults are for tests.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HEAD = struct.Struct("!cQ")
_PING, _PUT, _GET, _END = b"p", b"u", b"g", b"e"
_SMALL = 64
_CHUNK = 1 << 20
_TOKEN_S = 1.0
"""Whoever connects has so long to say the token: a stranger that says nothing must not keep the caller out."""
_MOST_SAID = 1 << 16
_RETRANSMITTED_S = 0.2
"""What a lost packet costs at least on TCP."""
_NETWORK_COUNTERS = ("rx_errors", "tx_errors", "rx_crc_errors")
_RDMA_COUNTERS = ("symbol_error", "port_rcv_errors", "link_error_recovery", "link_downed")


class Faults:
    """What this side does wrong on purpose: late answers, lost packets, a flipped bit, no answer at all."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.delay_s: float = options.delay_ms / 1000
        self.loss: float = options.loss
        self.flip: bool = options.flip
        self.hang: bool = options.hang
        self._chance = random.Random(0)

    def strike(self) -> None:
        """Be late, as the faults have it; once a message."""
        while self.hang:
            time.sleep(3600)
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.loss and self._chance.random() < self.loss:
            time.sleep(_RETRANSMITTED_S)

    def mangle(self, data: bytearray) -> None:
        """Flip a bit of what is sent."""
        if self.flip:
            data[len(data) // 2] ^= 1


def _read(link: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = link.recv_into(view, min(len(view), _CHUNK))
        if not got:
            raise ConnectionError("the other side ended the connection")
        view = view[got:]
    return data


def _content(seed: int, count: int) -> bytearray:
    """Return the same octets on both sides."""
    block = random.Random(seed).randbytes(min(count, _CHUNK))
    return bytearray((block * (count // len(block) + 1))[:count])


def errors() -> int:
    """Return all errors that the machine's network and RDMA ports have counted."""
    places = [
        *(path / name for path in Path("/sys/class/net").glob("*/statistics") for name in _NETWORK_COUNTERS),
        *(
            path / n
            for path in Path("/sys/class/infiniband").glob("*/ports/*/counters")
            for n in _RDMA_COUNTERS
        ),
    ]
    total = 0
    for place in places:
        try:
            total += int(place.read_text())
        except (OSError, ValueError):
            continue
    return total


def serve(
    listener: socket.socket,
    token: bytes,
    octets: int,
    faults: Faults,
    answer: Callable[[bytes], bytes] = lambda said: b"",
    idle_s: float | None = None,
) -> dict[str, Any]:
    """Answer one caller until it says that it is done; ``answer`` to what it says with that. ``address``: ours.

    ``idle_s``: a caller that says nothing for so long is left. Raises: OSError.
    """
    before = errors()
    while True:
        link, _ = listener.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(_TOKEN_S)
        try:
            if hmac.compare_digest(_read(link, len(token)), token):
                break
        except OSError:
            pass  # a stranger that looked whether the port is open
        link.close()
    link.settimeout(idle_s)
    theirs, mine = _content(1, octets), _content(2, octets)
    faults.mangle(mine)
    wrong = 0
    with link:
        while True:
            kind, count = _HEAD.unpack(_read(link, _HEAD.size))
            faults.strike()
            if kind == _PING:
                link.sendall(_read(link, count))
            elif kind == _PUT:
                wrong += hashlib.sha256(_received(link, count)).digest() != hashlib.sha256(theirs).digest()
            elif kind == _GET:
                link.sendall(mine)
            else:
                told = answer(bytes(_read(link, min(count, _MOST_SAID))))
                link.sendall(_HEAD.pack(_END, len(told)) + told)
                grown = max(errors() - before, 0)
                return {"correct": not wrong, "errors_grown": grown, "address": link.getsockname()[0]}


def _received(link: socket.socket, count: int) -> bytearray:
    """Read what is put, and say at once that it is here: the caller's clock stops before it is compared."""
    data = _read(link, count)
    link.sendall(_PUT)
    return data


def call(
    link: socket.socket, octets: int, pings: int, seconds: float, faults: Faults, said: bytes = b""
) -> dict[str, Any]:
    """Measure towards a side that serves, and say ``said`` at the end. Bandwidth is that of the slower direction.

    ``address`` is ours, ``answer`` what the other side said to it.
    """
    before = errors()
    mine, theirs = _content(1, octets), _content(2, octets)
    faults.mangle(mine)
    spans = []
    for _ in range(pings):
        began = time.perf_counter()
        faults.strike()
        link.sendall(_HEAD.pack(_PING, _SMALL) + bytes(_SMALL))
        _read(link, _SMALL)
        spans.append((time.perf_counter() - began) * 1e6)
    put_s: list[float] = []
    get_s: list[float] = []
    wrong, until = 0, time.perf_counter() + seconds
    while not put_s or time.perf_counter() < until:
        began = time.perf_counter()
        faults.strike()
        link.sendall(_HEAD.pack(_PUT, octets))
        link.sendall(mine)
        _read(link, 1)
        put_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        link.sendall(_HEAD.pack(_GET, octets))
        got = _read(link, octets)
        get_s.append(time.perf_counter() - began)
        wrong += got != theirs
    link.sendall(_HEAD.pack(_END, len(said)) + said)
    _, count = _HEAD.unpack(_read(link, _HEAD.size))
    answer = bytes(_read(link, min(count, _MOST_SAID)))
    spans.sort()
    slower = max(sum(put_s) / len(put_s), sum(get_s) / len(get_s))
    return {
        "busbw_gb_s": octets / slower / 1e9,
        "latency_p95_us": spans[min(int(len(spans) * 0.95), len(spans) - 1)],
        "correct": not wrong,
        "errors_grown": max(errors() - before, 0),
        "address": link.getsockname()[0],
        "answer": answer.decode("utf-8", "replace"),
    }


def connected(
    host: str, port: int, token: bytes, timeout_s: float, *, source: str = "", idle_s: float | None = None
) -> socket.socket:
    """Call the side that serves, from ``source`` where that is given, and say the token. Raises: OSError."""
    mine = (source, 0) if source else None
    until = time.monotonic() + timeout_s
    while True:
        try:
            left_s = max(until - time.monotonic(), 0.1)
            link = socket.create_connection((host, port), timeout=left_s, source_address=mine)
            break
        except OSError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)
    link.settimeout(idle_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(token)
    return link


def say(said: dict[str, Any]) -> None:
    """Print a line for whoever started this process."""
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    """Return what the words of its command line are."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("side", choices=("serve", "call"))
    made.add_argument("--host", default="127.0.0.1", help="to listen on, or to call")
    made.add_argument("--port", type=int, default=0)
    made.add_argument("--octets", type=int, default=32 << 20)
    made.add_argument("--pings", type=int, default=200)
    made.add_argument("--seconds", type=float, default=2.0)
    made.add_argument("--connect-s", type=float, default=5.0)
    made.add_argument("--delay-ms", type=float, default=0.0)
    made.add_argument("--loss", type=float, default=0.0)
    made.add_argument("--flip", action="store_true")
    made.add_argument("--hang", action="store_true")
    return made


def main(arguments: list[str]) -> int:
    """Play one side; the token comes on the first line of standard input, where no process list shows it."""
    options = parser().parse_args(arguments)
    token = hashlib.sha256(sys.stdin.readline().strip().encode()).digest()
    faults = Faults(options)
    try:
        if options.side == "serve":
            with socket.create_server((options.host, options.port)) as listener:
                say({"port": listener.getsockname()[1]})
                said = serve(listener, token, options.octets, faults)
        else:
            with connected(options.host, options.port, token, options.connect_s) as link:
                said = call(link, options.octets, options.pings, options.seconds, faults)
    except OSError as error:
        said = {"problem": f"{type(error).__name__}: {error}"}
    say(said)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
