"""Where an engine works, as the composition says it to whichever engine it makes.

Owns: the record. Must not know: engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """Where an engine works: the data folder, and how the server is reached from its runners."""

    home: Path
    """This server's own data folder."""
    data_home: Path
    """The one that it may share with a standby."""
    host: str
    """Where the server listens."""
    url: str
    urls: str
    """With a standby those of all servers, with commas between them; else ``url``."""
    standby: bool
    simulate: Mapping[str, int]
    monitor: Mapping[str, Any]
    """How agents watch their machines' health."""
    epoch: Callable[[], int]
    """The leader's, once it leads."""
    now_ms: Callable[[], int]
    """The server's time, which never goes back: what agents tell is put on it."""
