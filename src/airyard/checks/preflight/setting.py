"""What preflight checks are told beside where to look: who the peers are, which devices count, what was seen before.

Owns: the form in which a child process gets it. Must not know: any check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from airyard.checks.contract import Site

CACHES = ("code", "envs")
"""Folders of an agent that are caches: what runs brought along, and their environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Site):
    """A site as preflight sees it. What is left empty makes the checks that need it skip."""

    servers: tuple[str, ...] = ()
    """``HOST:PORT`` of the servers of which each may come to lead."""
    alone: str = ""
    """Why the nodes of a run are not called now."""
    writes: tuple[str, ...] = ()
    """Folders that runs write to: the run's own, and those of file servers that its pool names."""
    own: tuple[str, ...] = ()
    """Which of ``writes`` are the run's own: its account has to be allowed to write there."""
    account: tuple[int, ...] = ()
    """Who writes there: user, group and further groups; empty: as this process."""
    caches: tuple[str, ...] = ()
    """Folders of caches, which need not be there yet."""
    manifest: str = ""
    """A file in the form of ``sha256sum`` over cached weights or images."""
    python: str = ""
    """An interpreter that has torch: the environment's."""
    clock_offset_ms: float | None = None
    """This machine's clock less the controller's, where somebody measured it."""
    known: Mapping[str, str] = field(default_factory=dict)
    """What it was at enrolment: ``uuids``."""
    limits_file: str = ""
    """A site's own limits over the packaged ones."""
    pool: str = ""
    """Whose ``pool_limits`` they are."""
    pool_limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Limits of the node's pool, over those of the site; table → name → value."""
    fleet: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What is usual among other nodes, as the server tells it (``core/health/fleet_values.py``)."""
    only: tuple[str, ...] = ()
    """The checks that are wanted; none: all of the profile."""
    own_folder: str = ""
    """A folder of the site's own checks, one file each."""

    def as_json(self) -> dict[str, Any]:
        """Return what ``from_json`` takes."""
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Setting:
        """Build from ``as_json``; what is left out keeps its default. Raises: TypeError for an unknown name."""
        kinds: dict[str, Any] = {"root": Path, "data_folder": Path}
        for each in fields(cls):
            if isinstance(each.default, tuple):
                kinds[each.name] = tuple
        return cls(**{name: kinds.get(name, _same)(value) for name, value in data.items()})


def _same(value: Any) -> Any:
    return value


def setting_of(site: Site) -> Setting:
    """Return a site with the wishes of preflight: empty ones where it has none."""
    if isinstance(site, Setting):
        return site
    return Setting(
        root=site.root, data_folder=site.data_folder, gpus=site.gpus, hosts=site.hosts, full=site.full
    )
