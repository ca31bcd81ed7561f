"""Sends what was spooled, in order, once MLflow is there to take it.

Owns: the replaying thread, its pauses, and which refusals are final. Must not know: the spool's file format,
who may write, how an attempt finds its run (a function is given).

Each spool has its own turn and its own pauses: one that cannot go on holds up no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from airyard.adapters.mlflow_endpoint import AWAY_STATUSES, MlflowEndpoint
from airyard.adapters.tracking_merge import Request, first_request
from airyard.adapters.tracking_spool import SpooledWrite, Spools, WriteSpool
from airyard.core.errors import AiryardError, NotFound

_log = logging.getLogger(__name__)

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_IDLE_S = 1.0
_SERVER_ERRORS_UNTIL_REFUSED = 8
_JOINED_WRITES = 200

Rewrite = Callable[[bytes], bytes]
Resolve = Callable[[str], Rewrite | None]
"""attempt key -> what puts the real ids into a body; None: not known yet. Raises: NotFound when there will be none."""


def _no_attempts(attempt_key: str) -> Rewrite | None:
    raise NotFound(f"attempt {attempt_key} is not known", code="TRACKING_NOT_OPEN")


@dataclass(slots=True)
class _Turn:
    """How far the replay of one spool has come with its oldest writes, and when it is to go on."""

    failures: int = 0
    server_errors: int = 0
    singly: int = 0
    due_s: float = 0.0

    def pause(self) -> None:
        self.due_s = time.monotonic() + _PAUSES_S[min(self.failures, len(_PAUSES_S) - 1)]
        self.failures += 1

    def went_on(self) -> None:
        self.failures, self.server_errors, self.singly = 0, 0, max(0, self.singly - 1)


class SpoolReplayer:
    """The thread that sends what waits, oldest first, and goes on only when MLflow took or refused it."""

    def __init__(
        self,
        spools: Spools,
        endpoint: MlflowEndpoint,
        *,
        resolve: Resolve = _no_attempts,
        on_refused: Callable[[SpooledWrite, str], None] | None = None,
    ) -> None:
        self._spools = spools
        self._endpoint = endpoint
        self._resolve = resolve
        self._on_refused = on_refused
        self._turns: dict[str, _Turn] = {}
        self._stopping = threading.Event()
        self._poked = False
        self._thread = threading.Thread(target=self._run, name="tracking-replay", daemon=True)

    def start(self, resolve: Resolve | None = None) -> None:
        """Start replaying, with another ``resolve`` than the first one if given."""
        self._resolve = resolve or self._resolve
        self._thread.start()

    def stop(self) -> None:
        """Stop after the request in flight."""
        self._stopping.set()
        self._spools.arrived.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def poke(self) -> None:
        """Try again now: MLflow is said to be back."""
        self._poked = True
        self._spools.arrived.set()

    def _run(self) -> None:
        with self._endpoint.client() as client:
            while not self._stopping.is_set():
                self._spools.arrived.clear()
                if self._poked:
                    self._poked = False
                    self._turns.clear()
                if not self._round(client):
                    now_s = time.monotonic()
                    due_s = [turn.due_s - now_s for turn in self._turns.values() if turn.due_s > now_s]
                    self._spools.arrived.wait(min(due_s, default=_IDLE_S))

    def _round(self, client: httpx.Client) -> bool:
        """Give each spool its turn; returns whether any went on."""
        went_on = False
        for key, spool in {"": self._spools.main, **self._spools.held()}.items():
            if self._stopping.is_set():
                return False
            turn = self._turns.setdefault(key, _Turn())
            if not spool.is_empty and time.monotonic() >= turn.due_s:
                went_on = self._replay(client, key, spool, turn) or went_on
            if key and spool.is_empty:
                self._spools.retire(key)
                self._turns.pop(key, None)
        return went_on

    def _replay(self, client: httpx.Client, key: str, spool: WriteSpool, turn: _Turn) -> bool:
        """Send the oldest writes of one spool; returns whether they went or were refused for good."""
        found = spool.oldest(1 if turn.singly else _JOINED_WRITES)
        try:
            rewrite = self._rewrite(key)
        except NotFound as error:
            self._refuse(spool, found[0], error.message)
            turn.went_on()
            return True
        if rewrite is None:
            spool.note_failure(f"attempt {key} has no tracked run yet")
            turn.pause()
            return False
        request = first_request([(write.path, rewrite(write.body)) for write in found])
        status, reason = self._send(client, request)
        turn.server_errors = turn.server_errors + 1 if status == 500 else 0
        if 200 <= status < 300:
            spool.drop_oldest(request.writes)
            turn.went_on()
        elif not (_is_poison(status) or turn.server_errors >= _SERVER_ERRORS_UNTIL_REFUSED):
            spool.note_failure(reason)
            turn.pause()
            return False
        elif request.writes > 1:
            # One of them is refused: send each by itself to find out which.
            turn.singly, turn.server_errors = request.writes, 0
        else:
            self._refuse(spool, found[0], reason)
            turn.went_on()
        return True

    def _rewrite(self, key: str) -> Rewrite | None:
        if not key:
            return bytes
        try:
            return self._resolve(key)
        except NotFound:
            raise
        except (AiryardError, TimeoutError) as error:  # the control loop is busy or stopping
            _log.info("the run of attempt %s cannot be looked up: %s", key, error)
            return None

    def _send(self, client: httpx.Client, request: Request) -> tuple[int, str]:
        """Send one request; status 0 stands for no answer."""
        headers = {"Content-Type": "application/json"}
        try:
            answer = client.post(request.path, content=request.body, headers=headers)
        except httpx.HTTPError as error:
            return 0, str(error)
        return answer.status_code, f"HTTP status {answer.status_code}: {answer.text[:500]}"

    def _refuse(self, spool: WriteSpool, write: SpooledWrite, reason: str) -> None:
        age_s = time.time() - write.at_ms / 1000
        _log.warning("MLflow refused the write to %s spooled %.0f s ago: %s", write.path, age_s, reason)
        spool.refuse_oldest(reason)
        if self._on_refused is not None:
            self._on_refused(write, reason)


def _is_poison(status: int) -> bool:
    """Whether asking again cannot help; a refused credential (401, 403) can be mended, so it waits."""
    return 400 <= status < 500 and status not in AWAY_STATUSES | {401, 403, 408}
