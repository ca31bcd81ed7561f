"""The limits that a machine's monitors go by: its own file's, and over them those of the pool of the watched node.

Owns: what was told of pools, its copy on disk, when the file is read again. Must not know: what a limit is for.

A pool's limits come with each member that is started on a node: runs are what monitors watch for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airyard.node.exit_record import read_json, write_json_by_rename

if TYPE_CHECKING:
    from airyard.checks.contract import Thresholds
    from airyard.checks.thresholds import Table

MOST_NODES = 256


class MachineLimits:
    """The limits of one machine. Any thread."""

    def __init__(self, node_folder: Path) -> None:
        """Take up what was told before."""
        self._folder = node_folder
        self._kept = node_folder / "health" / "limits.json"
        self._lock = threading.Lock()
        found = read_json(self._kept) or {}
        self._told: dict[str, Mapping[str, Any]] = {
            name: told for name, told in found.items() if isinstance(told, dict)
        }
        self._last = next(reversed(self._told), "")
        self._file: tuple[Any, Table] | None = None
        self._made: dict[tuple[str, str], Thresholds] = {}

    def tell(self, node: str, told: Any) -> None:
        """Take in what a server says of a node's pool; empty: it has no limits. None: this server does not say."""
        if not isinstance(told, Mapping):
            return
        with self._lock:
            before = dict(self._told)
            self._told.pop(node, None)
            if told:
                self._told[node] = dict(told)
                for old in [*self._told][:-MOST_NODES]:
                    del self._told[old]
            self._last = node if told else ("" if self._last == node else self._last)
            if self._told != before:
                self._made.clear()
                with contextlib.suppress(OSError):  # after a restart the next start says it again
                    write_json_by_rename(self._kept, dict(self._told))

    def of(self, generation: str, node: str | None = None) -> Thresholds:
        """Return the limits of a node; None: of the one that was told of last. Cost: one look at the file's state."""
        from airyard.checks.thresholds import limits, of_pool

        with self._lock:
            name = self._last if node is None else node
            table = self._table()
            found = self._made.get((generation, name))
            if found is None:
                if told := self._told.get(name):
                    table = of_pool(table, told.get("tables"), str(told.get("pool", "")))
                found = self._made[generation, name] = limits(table, generation)
            return found

    def _table(self) -> Table:
        from airyard.checks.site_limits import FILE, machine_table

        try:
            state = (self._folder / FILE).stat()
            mark: Any = (state.st_mtime_ns, state.st_size, state.st_ino)
        except OSError:
            mark = None
        if self._file is None or self._file[0] != mark:
            self._file = mark, machine_table(self._folder)
            self._made.clear()
        return self._file[1]
