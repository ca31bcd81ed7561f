"""The web server that says when it accepts connections and when it ends.

Owns: signals while it serves. Must not know: what is served, what is done at a stop.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn


class AnnouncingServer(uvicorn.Server):
    """Says when it accepts connections and when it ends, and leaves signals to uvicorn's own handling."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_started: Callable[[], None],
        on_stopping: Callable[[], None],
        on_signal: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._on_signal = on_signal
        self._signalled = False
        self._on_started = on_started
        self._on_stopping = on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin a clean stop at the first signal; a second one does not wait for it."""
        if self._signalled:
            super().handle_exit(sig, frame)
            return
        self._signalled = True
        self._on_signal()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Stop on SIGTERM and SIGINT without raising them again afterwards: parts are still to be closed."""
        previous = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
