"""A Ray node of a machine whose head is elsewhere: of one that joined, and of a server in a fleet with a standby.

Owns: ``<home>/node/ray`` with the machine's id, its token, ports and plan, and the offer by which a relay knows what
the machine has. Must not know: who lets it join, what is offered.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airyard.adapters import ray_command
from airyard.adapters.ray_keeper import end_keeper, start_keeper

PORTS = ("node_manager", "object_manager")
ID_CHARACTERS = 32


class RayNode:
    """Has a Ray node running here, kept by a process of its own."""

    def __init__(
        self,
        home: Path,
        *,
        head: str,
        address: str,
        token_file: Path,
        offer: Mapping[str, Any] | None,
    ) -> None:
        """``offer`` is what the machine has for runs, without its id; None: it runs no members.

        Raises: OSError for an ``address`` that is not this machine's.
        """
        self._folder = folder_of(home)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._offer = dict(offer) if offer is not None else None
        token = ray_command.token_file(self._folder, token_file)
        temporary = ray_command.temporary_folder(self._folder)
        command = ray_command.node_command(
            head=head,
            address=address,
            ports=ray_command.kept_ports(self._folder, PORTS, address),
            temporary=temporary,
            runs_members=offer is not None,
        )
        environment = {**ray_command.ray_environment(token), ray_command.HOME_VARIABLE: str(home)}
        self._plan = {"command": command, "environment": environment, "temporary": str(temporary)}

    def ensure(self) -> None:
        """Have it running; harmless when it does. Raises: OSError, subprocess.CalledProcessError."""
        if self._offer is None:
            (self._folder / "offer.json").unlink(missing_ok=True)
        else:
            write_offer(self._folder, {"id": machine_id(self._folder), **self._offer})
        start_keeper(self._folder, self._plan)

    def stop(self) -> None:
        """End it, and its keeper with it; what runs on the machine goes on."""
        end_keeper(self._folder)


def folder_of(home: Path) -> Path:
    """Return where a machine's own files of Ray are."""
    return home / "node" / "ray"


def machine_id(folder: Path) -> str:
    """Return what a data folder is known by in the fleet, made at its first join."""
    path = folder / "id"
    with contextlib.suppress(OSError):
        if len(found := path.read_text(encoding="ascii").strip()) == ID_CHARACTERS:
            return found
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = secrets.token_hex(ID_CHARACTERS // 2)
    path.write_text(made)
    return made


def write_offer(folder: Path, offer: Mapping[str, Any]) -> None:
    """Write down what the machine has; whoever reads meanwhile finds all of it, old or new."""
    temporary = folder / ".offer.json"
    temporary.write_text(json.dumps(offer))
    temporary.replace(folder / "offer.json")
