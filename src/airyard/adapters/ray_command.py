"""How Ray's own programs are called: versions, environment, command lines, ports. Ray is never imported here.

Owns: the flags and variables that Airyard gives to Ray. Must not know: when they are started, what runs on the nodes.

Ray brings membership and a transport, nothing else: its CPUs and GPUs count for nothing here and are declared as none,
its dashboard and usage report are off, and every process needs the fleet's token.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from airyard.core.errors import Fix, UserError

RAY_VERSION = "2.60.0"
"""The release that this version of Airyard is tested with; every node of a Ray cluster must have the same one."""
NAMESPACE = "airyard"
HOME_VARIABLE = "AIRYARD_NODE_HOME"
"""Tells what runs below a raylet where the data folder of its machine is."""
INSTALL = "pip install 'airyard[server,ray]'"
ROLE_LABEL = "airyard-role"
"""On Ray nodes that run no members: the bridge leaves them alone."""
OBJECT_STORE_BYTES = 100 << 20
TOKEN_BYTES = 32
_SOCKET_PATH_BYTES = 107
_SESSION_PATH_BYTES = (
    62  # "/session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store" and a little room
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """Where a head keeps what it knows, so that it knows it again when it was killed."""

    address: str
    """HOST:PORT."""
    password: str = ""


def check_ray() -> None:
    """Raise UserError, with the command that mends it, unless the right Ray is installed. Imports nothing of it."""
    fix = Fix(text="Install the extra `ray` into the Python that runs Airyard.", command=INSTALL)
    try:
        found = version("ray")
    except PackageNotFoundError:
        raise UserError(
            "The engine `ray` needs Ray, which is not installed for this Python "
            f"({sys.executable}); Airyard needs Ray {RAY_VERSION}.",
            code="RAY_MISSING",
            fix=fix,
        ) from None
    if found != RAY_VERSION:
        raise UserError(
            f"Ray {found} is installed; this version of Airyard needs Ray {RAY_VERSION}, the same on all machines.",
            code="RAY_VERSION",
            fix=fix,
            details={"found": found, "needed": RAY_VERSION},
        )


def python_version() -> str:
    """Return this Python's version as far as Ray wants it to be the same on all machines."""
    return ".".join(str(part) for part in sys.version_info[:3])


def ray_environment(token_file: Path) -> dict[str, str]:
    """Return the variables for every process of Ray, drivers too: without them one joins and another does not."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        # A driver that starts no tasks of users needs no log stream of theirs.
        "RAY_LOG_TO_DRIVER": "0",
        # A raylet whose head came back without a memory can do nothing but end, and spins until it looks.
        "RAY_raylet_liveness_self_check_interval_ms": "5000",
    }


def head_environment(token_file: Path, redis: Redis | None) -> dict[str, str]:
    """Return the variables of the head's own processes. Fleets that share a Redis do not see each other's."""
    if redis is None:
        return ray_environment(token_file)
    fleet = sha256(token_file.read_bytes().strip()).hexdigest()[:16]
    return {
        **ray_environment(token_file),
        "RAY_REDIS_ADDRESS": redis.address,
        "RAY_external_storage_namespace": f"airyard-{fleet}",
    }


def head_command(
    *,
    address: str,
    ports: Mapping[str, int],
    temporary: Path,
    dashboard: bool,
    redis: Redis | None = None,
    apart: bool = False,
) -> list[str]:
    """Return the command line of the head, which stays in the foreground; ``apart``: there is no server beside it.

    The password is on it, because Ray has no other way, and puts it on its own command lines as well.
    """
    return [
        *_start(address, ports, temporary),
        "--head",
        f"--port={ports['gcs']}",
        f"--include-dashboard={'true' if dashboard else 'false'}",
        f"--dashboard-host={address}",
        *((f"--labels={ROLE_LABEL}=head",) if apart else ()),
        *((f"--redis-password={redis.password}",) if redis is not None and redis.password else ()),
    ]


def node_command(
    *, head: str, address: str, ports: Mapping[str, int], temporary: Path, runs_members: bool = True
) -> list[str]:
    """Return the command line of another node, which stays in the foreground."""
    role = () if runs_members else (f"--labels={ROLE_LABEL}=server",)
    return [*_start(address, ports, temporary), f"--address={head}", *role]


def _start(address: str, ports: Mapping[str, int], temporary: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--disable-usage-stats",
        f"--node-ip-address={address}",
        f"--node-manager-port={ports['node_manager']}",
        f"--object-manager-port={ports['object_manager']}",
        f"--temp-dir={temporary}",
        "--num-cpus=0",
        "--num-gpus=0",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
        "--log-style=record",
        "--log-color=false",
    ]


def token_file(folder: Path, given: Path | None = None) -> Path:
    """Return the file (0600) in ``folder`` that holds the fleet's token; made here, or copied from ``given``."""
    path = folder / "token"
    if given is not None:
        _write_private(path, given.read_text(encoding="ascii").strip())
    elif not path.exists() or len(path.read_text(encoding="ascii").strip()) < TOKEN_BYTES:
        _write_private(path, secrets.token_hex(TOKEN_BYTES))
    return path


def kept_ports(folder: Path, names: tuple[str, ...], address: str) -> dict[str, int]:
    """Return this machine's ports for Ray: chosen free once, then the same for ever, so that a firewall can know them.

    Raises: OSError for an address that is not this machine's.
    """
    path = folder / "ports.json"
    try:
        kept = {str(name): int(port) for name, port in json.loads(path.read_text()).items()}
    except (OSError, ValueError):
        kept = {}
    missing = [name for name in names if name not in kept]
    # All are held at once, so that no two are the same.
    held = [socket.create_server((address, 0)) for _ in missing]
    kept |= {name: each.getsockname()[1] for name, each in zip(missing, held, strict=True)}
    for each in held:
        each.close()
    if missing:
        _write_private(path, json.dumps(kept))
    return {name: kept[name] for name in names}


def own_address() -> str:
    """Return an address of this machine that others may reach; loopback where it has no other.

    Ray takes no loopback address for a node. Nothing is sent: the kernel is asked how it would send.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of documents: only the default route matters
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def temporary_folder(folder: Path) -> Path:
    """Return where Ray may keep its session: below ``folder``, or, where socket paths would get too long, in /tmp."""
    wanted = folder / "tmp"
    if len(os.fsencode(wanted)) + _SESSION_PATH_BYTES <= _SOCKET_PATH_BYTES:
        return wanted
    import hashlib
    import tempfile

    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]
    return Path(tempfile.gettempdir()) / f"airyard-{os.getuid()}-{name}"


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
