"""The command of one simulated member: it prints, sleeps, ends or is ended. Nothing is forked.

Owns: its life. Must not know: runners, the server. Signals do to it what they do to most programs, or what its words
say (``term``).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from airyard.core.log_frames import LogStream
from airyard.node.spool import LogSpool
from airyard.sim.fleet.command import Script

SIGKILL, SIGTERM = 9, 15
_PIECE = (b"x" * 127 + b"\n") * 512
_MOST_UNSENT_BYTES = 16 << 20
_FULL_PAUSE_S = 0.005
_CLEAN_S = (0.05, 1.0)

OnExit = Callable[[int | None, int | None], None]


class Process:
    """A started command. ``on_exit`` hears of its end, once, with its code or the signal that ended it."""

    def __init__(
        self, script: Script, spool: LogSpool, on_output: Callable[[], None], on_exit: OnExit
    ) -> None:
        self._script = script
        self._spool = spool
        self._on_output = on_output
        self._on_exit = on_exit
        self.alive = True
        self._life = asyncio.create_task(self._live())

    def say(self, text: str) -> None:
        """Print a line."""
        self._spool.append(LogStream.STDOUT, text.encode() + b"\n", time.time_ns())
        self._on_output()

    async def _live(self) -> None:
        behaviour = self._script.behaviour
        if self._script.problem:
            self._spool.append(LogStream.STDERR, f"{self._script.problem}\n".encode(), time.time_ns())
        left = self._script.log_bytes
        while left > 0:
            while self._spool.pending_bytes > _MOST_UNSENT_BYTES:  # as a pipe that is full
                await asyncio.sleep(_FULL_PAUSE_S)
            self._spool.append(LogStream.STDOUT, _PIECE[:left], time.time_ns())
            left -= len(_PIECE)
            self._on_output()
            await asyncio.sleep(0)
        if behaviour.duration_ms is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(behaviour.duration_ms / 1000)
        self.say("done")
        self._exit(None if behaviour.signal is not None else behaviour.code, behaviour.signal)

    def _exit(self, code: int | None, signal: int | None) -> None:
        if self.alive:
            self.alive = False
            self._life.cancel()
            self._on_exit(code, signal)

    def signal(self) -> None:
        """Deliver the signal of a stop."""
        loop = asyncio.get_running_loop()
        if self._script.behaviour.term == "die":
            loop.call_soon(self._exit, None, SIGTERM)
        elif self._script.behaviour.term == "clean":
            loop.call_later(random.uniform(*_CLEAN_S), self._exit, 0, None)

    def kill(self) -> None:
        """Kill it."""
        asyncio.get_running_loop().call_soon(self._exit, None, SIGKILL)

    def vanish(self) -> None:
        """End with its machine or its runner: nobody hears of it."""
        self.alive = False
        self._life.cancel()
