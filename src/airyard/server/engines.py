"""The engine that a configuration asks for, with what the server has beside it.

Owns: which engine serves which kind. Must not know: what the engines do, the order of a start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter

from airyard.adapters.dev_engine import DevEngine
from airyard.adapters.local_engine import LocalEngine
from airyard.app.leases import STANDBY_LEASE_S
from airyard.app.loop import ControlLoop
from airyard.ports.clock import Clock
from airyard.ports.engine import Engine
from airyard.server import routes_fleet
from airyard.server.config import EngineSection
from airyard.server.engine_place import EnginePlace
from airyard.server.fleet import FleetDesk, make_ray_engine, own_node


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """An engine, and the routes by which machines join it, where they do so themselves."""

    engine: Engine
    routes: Callable[[ControlLoop, Clock, str], APIRouter] | None = None
    """Of the loop, the clock, and in whose name machines that leave are closed."""


def make_engine(config: EngineSection, place: EnginePlace) -> EngineParts:
    """Return the engine of this kind. Raises: UserError for what it needs and does not find."""
    if config.kind == "ray":
        return _ray(config, place)
    if config.kind == "dev":
        lease_s = config.lease_seconds or STANDBY_LEASE_S
        engine = DevEngine(place.home, server_url=place.url, lease_s=lease_s, now_ms=place.now_ms)
        return EngineParts(engine=engine)
    locks = config.system_gpu_lock_folder
    return EngineParts(
        engine=LocalEngine(
            place.data_home,
            server_url=place.urls,
            simulate=place.simulate,
            cpu_slots=config.cpu_slots,
            gpu_lock_folder=Path(locks) if locks else None,
            lease_s=config.lease_seconds,
            monitor=place.monitor,
            now_ms=place.now_ms,
        )
    )


def join_own_fleet(config: EngineSection, place: EnginePlace) -> None:
    """Have the machine of a server in its fleet while the server waits to lead. Raises: as ``make_engine``."""
    if config.kind == "ray" and (node := own_node(config, place)) is not None:
        node.ensure()


def _ray(config: EngineSection, place: EnginePlace) -> EngineParts:
    engine = make_ray_engine(config, place)

    def routes(loop: ControlLoop, clock: Clock, by: str) -> APIRouter:
        desk = FleetDesk(
            engine,
            loop,
            folder=place.data_home / "server" / "ray",
            host=place.host,
            servers=place.urls.split(",") if place.standby else (),
            now_ms=clock.now_ms,
            by=by,
        )
        return routes_fleet.router(desk)

    return EngineParts(engine=engine, routes=routes)
