"""The agent's operations for tests of pairs: ``pair``, ``pair_end`` and ``pair_stop``.

Owns: when each is answered. Must not know: what a side does. All is called on the agent's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from airyard.node.agent_socket import Connection
from airyard.node.inventory import Node, Offer
from airyard.node.node_pairs import NodePairs

Operation = Callable[[Connection, dict[str, Any]], dict[str, Any] | None]


class PairOps:
    """What an agent does for tests of pairs."""

    def __init__(
        self,
        node_folder: Path,
        *,
        node: Callable[[str], Node | None],
        is_busy: Callable[[str], bool],
        is_checking: Callable[[], bool],
        offer: Callable[[], Offer],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """``soon`` does something on the agent's thread, and is called from any."""
        self.pairs = NodePairs(node_folder)
        self._node = node
        self._is_busy = is_busy
        self._is_checking = is_checking
        self._offer = offer
        self._soon = soon

    def operations(self) -> Mapping[str, Operation]:
        """Return the operations by their names."""
        return {"pair": self._pair, "pair_end": self._pair_end, "pair_stop": self._pair_stop}

    def _pair(self, connection: Connection, request: dict[str, Any]) -> None:
        """Answer, of the side that serves, when it listens; of the other when it has ended.

        It is ended when nobody is there any more to hear of it.
        """
        name = str(request["node"])
        side = self.pairs.begin(
            request,
            self._node(name),
            self._offer(),
            busy=self._is_busy(name),
            checking=self._is_checking(),
            is_wanted=lambda: connection.is_open,
        )
        self._answer(connection, request, side.opened if request["side"] == "serve" else side.ended)

    def _pair_end(self, connection: Connection, request: dict[str, Any]) -> None:
        """Answer when a side has ended, with what it came to."""
        side = self.pairs.find(str(request["name"]), str(request["node"]))
        self._answer(connection, request, side.ended)

    def _pair_stop(self, _: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self.pairs.stop(str(request["name"]))
        return {}

    def _answer(
        self, connection: Connection, request: Mapping[str, Any], future: Future[dict[str, Any]]
    ) -> None:
        def send() -> None:
            connection.send({"id": request.get("id"), "ok": True, "result": future.result()})

        future.add_done_callback(lambda _: self._soon(send))
