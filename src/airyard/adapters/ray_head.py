"""The Ray head of a fleet: its first node, on the server's own machine or, with a standby, on one of its own.

Owns: its folder (token, ports, plan), having it running. Must not know: what runs on Ray.

It is kept by a process of its own, so that a server's restart costs the fleet nothing.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from airyard.adapters import ray_command
from airyard.adapters.ray_keeper import end_keeper, start_keeper
from airyard.core.errors import Unavailable

PORTS = ("gcs", "node_manager", "object_manager")
_START_S = 120.0


class RayHead:
    """Starts, finds and ends the head."""

    def __init__(
        self,
        folder: Path,
        *,
        address: str,
        dashboard: bool = False,
        redis: ray_command.Redis | None = None,
        apart: bool = False,
        port: int | None = None,
    ) -> None:
        """``folder`` is made (0700); ``apart``: no server is beside it.

        Raises: OSError for an ``address`` that is not this machine's.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._address = address
        self._dashboard = dashboard
        self._redis = redis
        self._apart = apart
        self._ports = ray_command.kept_ports(folder, PORTS, address)
        if port is not None:
            self._ports["gcs"] = port
        self.token_file = ray_command.token_file(folder)
        self.address = f"{address}:{self._ports['gcs']}"
        """Where nodes and drivers find it."""

    def ensure(self) -> None:
        """Return when the head takes connections, started if need be. Raises: Unavailable with the end of its log."""
        temporary = ray_command.temporary_folder(self._folder)
        plan = {
            "command": ray_command.head_command(
                address=self._address,
                ports=self._ports,
                temporary=temporary,
                dashboard=self._dashboard,
                redis=self._redis,
                apart=self._apart,
            ),
            "environment": ray_command.head_environment(self.token_file, self._redis),
            "temporary": str(temporary),
        }
        start_keeper(self._folder, plan)
        deadline = time.monotonic() + _START_S
        while not self.listens():
            if time.monotonic() > deadline:
                log = self._folder / "keeper.log"
                lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
                raise Unavailable(
                    f"The Ray head of this machine does not listen at {self.address}: {' | '.join(lines)}",
                    code="RAY_HEAD_AWAY",
                    fix=f"See {log}.",
                )
            time.sleep(0.1)

    def listens(self) -> bool:
        """Return whether something takes connections at the head's address."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=2).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End the head, and its keeper with it; what other machines run goes on."""
        end_keeper(self._folder)
