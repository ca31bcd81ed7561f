"""Reads a dump of torch's flight recorder: ``python -m airyard.node.flight_dump < DUMP``, which prints JSON.

Owns: the dump's layout, what of it is kept. Must not know: where dumps lie, who asks.

A dump is a pickle that a user's process wrote: nothing it names is loaded but the few constructors of lists that torch
uses, which stand for nothing here, and the process that reads it has little memory and little time.
Source: torch/csrc/distributed/c10d/FlightRecorder.hpp (version 2: entries, pg_config, pg_status).
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

MOST_GROUPS = 16
MOST_OPERATIONS = 3
MOST_OCTETS = 64 << 20
_MEMORY = 1 << 30
_SECONDS = 10
_STAND_INS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("torch.jit._pickle", "build_intlist"): lambda values: values,
    ("torch.jit._pickle", "build_doublelist"): lambda values: values,
    ("torch.jit._pickle", "build_boollist"): lambda values: values,
    ("torch.jit._pickle", "build_tensorlist"): lambda values: values,
    ("torch.jit._pickle", "restore_type_tag"): lambda value, tag: value,
}


class _Plain(pickle.Unpickler):
    """Loads numbers, text, lists and maps, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in. Raises: UnpicklingError for anything that is not plain data."""
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a dump") from None

    def persistent_load(self, pid: object) -> Any:
        """Raises: UnpicklingError. A dump refers to nothing outside of itself."""
        raise pickle.UnpicklingError("a dump refers to nothing outside of itself")


def summary(data: bytes) -> list[dict[str, Any]]:
    """Return how far the rank is in each communicator. Raises: ValueError for what is no dump."""
    try:
        dump = _Plain(io.BytesIO(data)).load()
        status = {str(group): value for group, value in dict(dump.get("pg_status") or {}).items()}
        names = {str(group): str(value.get("name", group)) for group, value in dump["pg_config"].items()}
        entries = [entry for entry in dump["entries"] if not entry.get("is_p2p")]
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for entry in entries:
            group = entry.get("process_group") or (names.get(str(entry["pg_id"]), ""), "")
            groups.setdefault(str(group[0]), []).append(entry)
        by_name = {names.get(group, group): value for group, value in status.items()}
        return [_place(name, groups[name], by_name.get(name)) for name in sorted(groups)[:MOST_GROUPS]]
    except Exception as error:  # whatever a pickle of somebody else's does
        raise ValueError(f"no dump of a flight recorder: {type(error).__name__}: {error}") from error


def _place(name: str, entries: list[Mapping[str, Any]], status: Mapping[str, Any] | None) -> dict[str, Any]:
    ordered = sorted(entries, key=lambda entry: int(entry["collective_seq_id"]))
    seqs = [int(entry["collective_seq_id"]) for entry in ordered]
    done = [
        int(entry["collective_seq_id"])
        for entry in ordered
        if entry.get("retired") or entry["state"] == "completed"
    ]
    begun = [
        int(entry["collective_seq_id"]) for entry in ordered if entry["state"] in ("started", "completed")
    ]
    told = status or {}
    timed = int(told.get("last_started_collective", -1)) >= 0 or any(
        entry["state"] == "started" for entry in ordered
    )
    started = max([int(told.get("last_started_collective", -1)), *begun])
    return {
        "group": name[:80],
        "enqueued": max([int(told.get("last_enqueued_collective", -1)), *seqs]),
        "completed": max([int(told.get("last_completed_collective", -1)), *done, 0]),
        # Without timing, torch does not record when an operation starts, only that it is done.
        "started": started if timed else None,
        "last": [
            [
                int(entry["collective_seq_id"]),
                str(entry["profiling_name"])[:40],
                str(entry.get("input_sizes", ""))[:80],
                str(entry.get("input_dtypes", ""))[:40],
            ]
            for entry in ordered[-MOST_OPERATIONS:]
        ],
    }


def main() -> int:
    """Print the summary of the dump on standard input; 1 for what is none."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    try:
        found = summary(sys.stdin.buffer.read(MOST_OCTETS))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
