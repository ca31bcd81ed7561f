"""What the server says of monitoring: whether, and how often each thing is looked at.

Owns: the form of ``hello``'s ``monitor`` and of the copy in the data folder, defaults, bounds. Must not know: what is
looked at. An agent that starts where no server is follows what was said last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

_LEAST_S = 0.1
_MOST_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Seconds between two looks; the defaults are what ``benchmarks/bench_health.py`` measures."""

    enabled: bool = True
    kernel_s: float = 1.0
    ports_s: float = 1.0
    gpus_s: float = 5.0
    """Clocks, heat and power, while a run has a GPU."""
    gpus_idle_s: float = 60.0
    counters_s: float = 30.0
    """Memory errors, links, PCIe."""
    host_s: float = 60.0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HealthSettings:
        """Build from what a server said; what is no number in its bounds, or not known here, stays at its default."""
        given: dict[str, Any] = {}
        for name in (field.name for field in fields(cls)):
            value = data.get(name)
            if name == "enabled":
                given[name] = value is not False
            elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                given[name] = min(max(float(value), _LEAST_S), _MOST_S)
        return cls(**given)

    @classmethod
    def load(cls, path: Path) -> HealthSettings:
        """Return what was said last; the defaults where nothing was."""
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):
            return cls()
        return cls.from_json(found) if isinstance(found, dict) else cls()

    def save(self, path: Path) -> None:
        """Keep for the next start. Raises: OSError."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)
