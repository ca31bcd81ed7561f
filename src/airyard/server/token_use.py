"""When each token was used last: kept in memory, and written to a file now and then.

Owns: that file. Must not know: tokens. It is no fact that anything depends on, so it is in no journal; what a crash
loses is the last minute of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import MutableMapping
from pathlib import Path

import structlog

from airyard.server.premises import write_atomically

SAVE_S = 60.0
_log = structlog.get_logger("airyard.tokens")


class TokenUse:
    """Fills a map of token id → milliseconds from the file, and keeps the file up to date until ``stop``."""

    def __init__(self, path: Path, used_ms: MutableMapping[str, int]) -> None:
        self._path = path
        self._used_ms = used_ms
        self._saved: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="token-use", daemon=True)

    def start(self) -> None:
        """Read the file, and begin to write it."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            self._saved = {str(token_id): int(at_ms) for token_id, at_ms in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._saved = {}
        for token_id, at_ms in self._saved.items():
            self._used_ms.setdefault(token_id, at_ms)
        self._thread.start()

    def stop(self) -> None:
        """Write the file a last time."""
        self._stopping.set()
        self._thread.join(timeout=5)
        self._save()

    def _run(self) -> None:
        while not self._stopping.wait(SAVE_S):
            self._save()

    def _save(self) -> None:
        now = dict(self._used_ms)
        if now == self._saved:
            return
        try:
            write_atomically(self._path, json.dumps(now).encode())
            self._saved = now
        except OSError as error:
            _log.warning("token_use_not_saved", error=str(error))
