"""Leaving a fleet, and staying in it until it is time: what ends a membership that ``joining`` began.

Owns: draining through the server's desk, ending Ray and the agent here, the life of ``airyard node join --block``.
Must not know: how a machine joins, Ray's inside, the command line.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airyard.adapters.agent_process import connected
from airyard.adapters.ray_keeper import end_keeper
from airyard.adapters.ray_relay import OFFER
from airyard.core.errors import AiryardError, Unavailable, UserError
from airyard.node.joining import Desk, is_joined, read_token
from airyard.node.trust import kept_ca

_FAREWELL_S = 20.0
_CONNECT_S = 5.0
_POLL_S = 0.2
_LATE_S = 8.0
"""After the deadline of a drain: members are killed, their ends reported, their logs closed."""
_LOOK_S = 0.5
_TAKING_OUT_S = 2.0
"""Between the end of Ray and that of the membership, while `airyard node leave` takes this machine out."""


class Asked:
    """Within how many seconds a machine that stays was asked to leave. Set by signal handlers, read by ``stay``."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.within_s: int | None = None

    def leave(self, within_s: int) -> None:
        """Ask; a later call may only shorten the time. 0: at once, members live on."""
        if self.within_s is None or within_s < self.within_s:
            self.within_s = within_s
        self.event.set()


def stay(home: Path, asked: Asked, *, until_ms: int | None = None) -> dict[str, Any] | None:
    """Stay in the fleet until asked to leave or until the end of the stay, then leave; None: it was taken out.

    Raises: Unavailable when Ray's keeper ended by itself, so that who keeps this process running starts it again.
    """
    while not asked.event.wait(1.0):
        if until_ms is not None and time.time_ns() // 1_000_000 >= until_ms:
            break
        if not is_joined(home):
            asked.event.wait(_TAKING_OUT_S)
            if not (home / OFFER).exists():
                return None
            leave(home, force=True)
            raise Unavailable(
                "Ray ended on this machine, which has left the fleet.",
                code="KEEPER_ENDED",
                fix=f"See {home / 'node' / 'ray' / 'keeper.log'}; a service joins again by itself.",
            )
    return leave(home, force=True, within_s=asked.within_s or None, sooner=lambda: asked.within_s)


def leave(
    home: Path,
    *,
    force: bool = False,
    within_s: int | None = None,
    sooner: Callable[[], int | None] = lambda: None,
) -> dict[str, Any]:
    """Leave the fleet: Ray ends here, and the agent unless members live on. Return {name, members left here}.

    ``within_s``: its nodes are drained first; runs that are left then are killed by the server, and go on elsewhere.
    ``sooner``, asked again and again, may shorten that. Raises: NODE_BUSY with members, unless one of the two is given.
    """
    folder = home / "node" / "ray"
    try:
        offer = json.loads((folder / "offer.json").read_text())
    except (OSError, ValueError):
        raise UserError(f"{home} has joined no fleet.", code="NOT_JOINED") from None
    name, members, desk = str(offer["machine"]), [], None
    try:
        desk = Desk(str(offer["server_url"]), read_token(folder / "token"), kept_ca(folder.parent))
        if within_s is not None:
            _drain(desk, name, within_s, sooner)
        members = desk.post("leave", {"name": name, "force": force or within_s is not None})["members"]
    except Unavailable:
        if not force:
            raise
    end_keeper(folder)
    # First, because a relay that still lives would start the agent again.
    (folder / "offer.json").unlink(missing_ok=True)
    if not members:
        with contextlib.suppress(OSError), connected(home) as stream:
            stream.settimeout(_CONNECT_S)
            stream.sendall(b'{"id":0,"op":"stop"}\n')
            while stream.recv(4096):
                pass
    _await_farewell(desk, f"machines/{name}?machine_id={offer['id']}")
    return {"name": name, "members": members}


def _drain(desk: Desk, name: str, within_s: int, sooner: Callable[[], int | None]) -> None:
    """Have the server drain this machine's nodes; return once no member is left, or soon after the deadline.

    While no server answers, the members are taken to be there. Raises: Unavailable when none does at the very end.
    """
    deadline, told = time.monotonic() + within_s, False
    while True:
        problem: Unavailable | None = None
        try:
            if not told:
                left_s = max(1, round(deadline - time.monotonic()))
                desk.post("leave", {"name": name, "within_s": left_s})
                told = True
            if not desk.post("leave", {"name": name, "force": True})["members"]:
                return
        except Unavailable as error:
            problem = error  # a server that is started again, or another that takes over
        shorter = sooner()
        if shorter is not None and time.monotonic() + shorter < deadline - 1:
            deadline, told = time.monotonic() + shorter, False
        if time.monotonic() > deadline + _LATE_S:
            if problem is not None:
                raise problem
            return
        time.sleep(_LOOK_S)


def _await_farewell(desk: Desk | None, question: str) -> None:
    """Wait a little until the server has noticed, so that the name is free when this returns."""
    deadline = time.monotonic() + _FAREWELL_S
    with contextlib.suppress(AiryardError):
        while desk is not None and desk.get(question)["joined"] and time.monotonic() < deadline:
            time.sleep(_POLL_S)
