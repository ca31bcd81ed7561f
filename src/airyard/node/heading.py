"""A Ray head on a machine of its own: for a fleet with a standby, whose leader may be lost with its machine.

Owns: what ``airyard node head`` does, its folder ``<home>/head``. Must not know: servers, who joins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airyard.adapters import ray_command
from airyard.adapters.ray_command import Redis
from airyard.adapters.ray_head import RayHead
from airyard.adapters.ray_keeper import end_keeper, keeper_pid
from airyard.core.errors import NotFound, UserError

FOLDER = "head"


def start_head(
    home: Path, *, address: str, port: int | None, redis: str | None, password: str
) -> dict[str, Any]:
    """Have a head running here; return {address, token_file} once it takes connections.

    ``redis`` is HOST:PORT of the one in which it keeps its state. Harmless when it runs: what differs from before
    counts from its next restart on.
    Raises: UserError for an address that is not this machine's, Unavailable.
    """
    ray_command.check_ray()
    address = address or ray_command.own_address()
    place = Redis(address=redis, password=password) if redis else None
    try:
        head = RayHead(home / FOLDER, address=address, redis=place, apart=True, port=port)
    except OSError as error:
        raise UserError(
            f"{address} is no address of this machine: {error.strerror}.",
            code="BAD_ADDRESS",
            fix="Name one with --address.",
        ) from None
    head.ensure()
    return {"address": head.address, "token_file": str(head.token_file)}


def is_kept(home: Path) -> bool:
    """Return whether a keeper has a head running for this data folder."""
    return keeper_pid(home / FOLDER) is not None


def stop_head(home: Path) -> None:
    """End the head; what runs on the fleet's machines goes on. Raises: NotFound."""
    if not is_kept(home):
        raise NotFound(f"No head runs for {home}.", code="NO_HEAD")
    end_keeper(home / FOLDER)
