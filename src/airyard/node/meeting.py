"""Whether a member's machine reaches those of the others, tried by TCP before the command starts.

Owns: the listener that a runner keeps open for the others, and the tries. Must not know: the server, processes.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airyard.node.network import Choice, Wish, choose, collect, variables

TRY_S = 4.0
"""Two SYNs that are lost on a busy network are sent again within this time."""
_BACKLOG = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Where another member of the gang is reached."""

    member: int
    machine: str
    address: str
    port: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Peer:
        """Read an item of ``GO.peers``. Raises: KeyError, ValueError."""
        return cls(
            member=int(data["member"]),
            machine=str(data["machine"]),
            address=str(data["address"]),
            port=int(data["port"]),
        )

    def __str__(self) -> str:
        return f"member {self.member} on {self.machine} ({self.address})"


def open_listener() -> socket.socket | None:
    """Listen on a free port of all addresses; the kernel answers, nobody has to accept. None: no port is free."""
    try:
        return socket.create_server(("", 0), backlog=_BACKLOG)
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What the tries gave: peers that cannot be reached and why, and peers whose machine answered by a refusal."""

    lost: tuple[tuple[Peer, str], ...]
    refused: tuple[Peer, ...]


def try_peers(peers: Sequence[Peer], timeout_s: float = TRY_S) -> Tried:
    """Connect to all peers at once. A refusal is an answer: the runner of a short member may have left already."""
    lost: list[tuple[Peer, str]] = []
    refused: list[Peer] = []
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            stream.setblocking(False)
            stream.connect_ex((peer.address, peer.port))
            selector.register(stream, selectors.EVENT_WRITE, peer)
        while waiting := dict(selector.get_map()):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                lost += [(key.data, f"no answer within {timeout_s:g} s") for key in waiting.values()]
                done = list(waiting.values())
            else:
                done = [key for key, _ in ready]
            for key in done:
                stream = key.fileobj  # type: ignore[assignment]  # only sockets are registered
                if ready:
                    _note(key.data, stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), lost, refused)
                selector.unregister(stream)
                stream.close()
    lost.sort(key=lambda item: item[0].member)
    return Tried(lost=tuple(lost), refused=tuple(refused))


def _note(peer: Peer, code: int, lost: list[tuple[Peer, str]], refused: list[Peer]) -> None:
    if code == 0:
        return
    if code == errno.ECONNREFUSED:
        refused.append(peer)
    else:
        lost.append((peer, os.strerror(code).lower()))


def lost_text(me: Peer, lost: Sequence[tuple[Peer, str]]) -> str:
    """Say which ends do not reach each other, and what to do."""
    told = "; ".join(f"{peer}: {why}" for peer, why in lost[:4])
    more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
    return (
        f"{me} cannot reach {told}{more}. Open the firewall between them, or name another network of these machines "
        "(`airyard node join --interface`, `--address`)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What came of a meeting: how this member is reached, what NCCL and gloo are told, or what is wrong."""

    address: str
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str = ""


class MeetingPlace:
    """A member's side of the meeting: the listener, from READY on, and the tries after GO."""

    def __init__(self, address: str, wish: Wish) -> None:
        """``address`` is the machine's, as the fleet knows it; loopback: there is no other machine."""
        self._address = address
        self._wish = wish
        self._listener: socket.socket | None = None
        self._choice: Choice | None = None

    @property
    def is_alone(self) -> bool:
        """True where no other machine can be met."""
        return self._address.startswith("127.")

    def open(self) -> dict[str, Any] | None:
        """Look at the networks, listen, and return what READY says; None where all members are on one machine."""
        if self.is_alone:
            return None
        self._choice = choose(collect(), self._wish, self._address)
        self._listener = open_listener()
        if self._listener is None:
            return None
        return {
            "addresses": list(self._choice.addresses),
            "port": self._listener.getsockname()[1],
            "rdma": bool(self._choice.rdma),
            "network": self._choice.summary,
        }

    def meet(self, member: int, go: Mapping[str, Any], *, own: Collection[str]) -> Met:
        """Try the others after GO. The listener stays open until the runner leaves. Cost: up to ``TRY_S``."""
        peers = [Peer.from_json(each) for each in go.get("peers") or ()]
        me = next((peer for peer in peers if peer.member == member), None)
        if me is None or self._choice is None:
            return Met(address=self._address)
        tried = try_peers([peer for peer in peers if peer.machine != me.machine])
        if tried.lost:
            return Met(address=me.address, problem=lost_text(me, tried.lost))
        notes = [f"{peer} answered, but refused: its runner may have left already" for peer in tried.refused]
        told = variables(self._choice, me.address, rdma=bool(go.get("rdma")), own=own)
        return Met(address=me.address, variables=told, notes=tuple(notes))
