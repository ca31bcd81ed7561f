"""The way to other machines: whether they answer, how large packets may be, whether large ones arrive at all.

Owns: calling many places at once, and what a way there has to be like. Must not know: who they are, what follows.

A network whose switches take smaller packets than its adapters send answers a call and swallows what comes after it.
So some large packets follow: that they arrived is what the other's kernel says, nobody there has to read them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import socket
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from airyard.checks.contract import Thresholds, failed, passed, warned
from airyard.core.health.facts import CheckResult, Component

NAME = "net.peers"
CALL_S = 4.0
"""Two SYNs that are lost on a busy network are sent again within this time."""
LOAD = 32 << 10
"""Bytes; less than what a kernel keeps for a connection that nobody has accepted yet."""
_LOOK_S = 0.02
_IP_MTU = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to ``HOST:PORT``. ``mtu``: the largest packet on it, as far as the kernel knows.

    ``problem``: what is wrong. ``refused``: the machine answered, and nobody listens there.
    """

    place: str
    took_ms: float = 0.0
    problem: str = ""
    mtu: int | None = None
    refused: bool = False


def call(places: Sequence[str], *, load: int = 0, within_s: float = CALL_S) -> tuple[Way, ...]:
    """Call all at once; with ``load`` also send so many bytes and wait until they arrived.

    Blocks, ``within_s`` at most for each of the two, and as long as names take to be resolved.
    """
    streams: dict[str, socket.socket] = {}
    try:
        ways = _connected(dict.fromkeys(places), streams, within_s)
        if load:
            ways |= _loaded({place: ways[place] for place in streams}, streams, load, within_s)
    finally:
        for stream in streams.values():
            stream.close()
    return tuple(ways[place] for place in dict.fromkeys(places))


def _connected(places: dict[str, None], streams: dict[str, socket.socket], within_s: float) -> dict[str, Way]:
    """Return how each was reached; who was stays open in ``streams``."""
    ways: dict[str, Way] = {}
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for place in places:
            try:
                selector.register(_calling(place), selectors.EVENT_WRITE, place)
            except (OSError, ValueError) as error:
                refused = isinstance(error, ConnectionRefusedError)
                problem = getattr(error, "strerror", None) or str(error)
                ways[place] = Way(place=place, problem=problem, refused=refused)
        while selector.get_map() and (left := began + within_s - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                stream: socket.socket = key.fileobj  # type: ignore[assignment]  # only sockets are registered
                selector.unregister(stream)
                code = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                way = Way(place=key.data, took_ms=(time.monotonic() - began) * 1000)
                if code:
                    refused = code == errno.ECONNREFUSED
                    ways[key.data] = replace(way, problem=os.strerror(code).lower(), refused=refused)
                    stream.close()
                else:
                    ways[key.data] = replace(way, mtu=_mtu(stream))
                    streams[key.data] = stream
        for key in list(selector.get_map().values()):
            ways[key.data] = Way(place=key.data, problem=f"no answer within {within_s:g} s")
            key.fileobj.close()  # type: ignore[union-attr]  # as above
    return ways


def _calling(place: str) -> socket.socket:
    """Begin to connect. Raises: OSError, as where no route leads there; ValueError for what is no place."""
    host, _, port = place.rpartition(":")
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    stream = socket.socket(family, kind)
    stream.setblocking(False)
    code = stream.connect_ex(address)
    if code not in (
        0,
        errno.EINPROGRESS,
    ):  # told now, the socket does not tell it again: it would seem connected
        stream.close()
        raise OSError(code, os.strerror(code).lower())
    return stream


def _loaded(
    ways: dict[str, Way], streams: dict[str, socket.socket], load: int, within_s: float
) -> dict[str, Way]:
    """Send to all and return their ways with what came of it."""
    found = dict(ways)
    waiting = set(ways)
    data = os.urandom(load)
    for place in ways:
        try:
            streams[place].send(data)
        except OSError as error:
            found[place] = replace(ways[place], problem=str(error.strerror).lower())
            waiting.discard(place)
    until = time.monotonic() + within_s
    while waiting and time.monotonic() < until:
        waiting = {place for place in waiting if _unsaid(streams[place])}
        if waiting:
            time.sleep(_LOOK_S)
    for place in waiting:
        text = f"it answers, but large packets did not arrive within {within_s:g} s"
        found[place] = replace(ways[place], problem=text)
    return found


def _unsaid(stream: socket.socket) -> int:
    """Return how many bytes the other side has not said it has."""
    return int(struct.unpack("i", fcntl.ioctl(stream, termios.TIOCOUTQ, b"\0" * 4))[0])


def _mtu(stream: socket.socket) -> int | None:
    if stream.family != socket.AF_INET:
        return None
    try:
        return stream.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return None


def judged(ways: Sequence[Way], limits: Thresholds) -> Iterator[CheckResult]:
    """Judge the ways to other nodes. A machine that refuses has answered: who was called there may be gone by now."""
    least = limits.get("mtu_least") or 0
    bad = 0
    for way in ways:
        if way.problem and not way.refused:
            bad += 1
            yield failed(
                NAME,
                f"{way.place} cannot be reached: {way.problem}",
                "look at routes, firewalls and the MTU of the switches between the two; either end may be at fault",
                Component.NETWORK,
                details={"peer": way.place},
            )
        elif least and way.mtu is not None and way.mtu < least:
            bad += 1
            yield warned(
                NAME,
                f"packets to {way.place} may have {way.mtu} bytes",
                "set the same MTU on adapters and switches of the way",
                value=way.mtu,
                threshold=least,
                unit="bytes",
            )
    if not bad:
        slowest = max((way.took_ms for way in ways), default=0.0)
        yield passed(NAME, f"{len(ways)} nodes answered", value=slowest, unit="ms")
