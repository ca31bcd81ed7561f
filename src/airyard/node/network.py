"""What networks a machine has, and which of them a run over several machines uses.

Owns: reading interfaces, routes and RDMA ports (``collect``), which of them are usable and best (``choose``), the
variables that tell NCCL and gloo. Must not know: the server, orders. Standard library only; all but ``collect`` and
``ipv4_addresses`` is pure. IPv4 only.
"""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_NAME_BYTES = 15
_MAX_GIDS = 16
_ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_DEFAULT_ROUTE = "00000000"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface. ``speed_mbps`` None: it does not say, like most virtual ones."""

    name: str
    address: str | None
    """Its first IPv4 address with the length of its prefix: ``10.0.0.2/24``."""
    state: str
    mtu: int
    speed_mbps: int | None
    physical: bool
    bridge: bool
    default_route: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """A port of an RDMA adapter (HCA)."""

    hca: str
    number: int
    state: str
    gbps: float
    link_layer: str
    gid_type: str
    """``IB``, ``RoCE v2``, ``RoCE v1``; empty when it has no address yet."""

    @property
    def name(self) -> str:
        """As NCCL names it."""
        return f"{self.hca}:{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """All that was found. ``verbs``: programs can open RDMA adapters here (``/dev/infiniband/uverbs*``)."""

    interfaces: tuple[Interface, ...]
    ports: tuple[RdmaPort, ...]
    verbs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the configuration of a machine says instead of what is found; empty: choose."""

    interface: str = ""
    hcas: tuple[str, ...] = ()
    """``mlx5_0`` or, for one port of it, ``mlx5_0:1``."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Wish:
        """Read ``{"interface", "hcas"}``. Raises: ValueError."""
        data = data or {}
        hcas = data.get("hcas") or ()
        if isinstance(hcas, str):
            raise ValueError("network.hcas is a list")
        return cls(interface=str(data.get("interface") or ""), hcas=tuple(str(each) for each in hcas))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a run may use. ``rdma`` is empty when there is none that works, and ``summary`` says why."""

    addresses: tuple[str, ...]
    """Usable addresses with their prefix, the preferred one first."""
    rdma: tuple[str, ...]
    summary: str
    names: Mapping[str, str]
    """The interface of each address (without prefix)."""


def choose(network: Network, wish: Wish, preferred: str) -> Choice:
    """Return what a run may use; ``preferred`` is the address by which the machine is known.

    With a wished interface only its address counts. Else the preferred address comes first, then the others, physical
    and fast interfaces before virtual and slow ones; loopback, interfaces that are down and bridges of containers (all
    bridges without the default route) are left out.
    """
    usable = [each for each in network.interfaces if _usable(each, wish, preferred)]
    usable.sort(
        key=lambda each: (_bare(each) != preferred, not each.physical, -(each.speed_mbps or 0), each.name)
    )
    addresses = tuple(each.address for each in usable if each.address)
    names = {_bare(each): each.name for each in usable}
    rdma, why = _rdma(network, wish)
    tcp = f"TCP only: {why}{_tcp_text(usable[0]) if usable else ''}"
    summary = _rdma_text(rdma) if rdma else tcp
    return Choice(addresses=addresses, rdma=tuple(port.name for port in rdma), summary=summary, names=names)


def wish_problem(network: Network, wish: Wish) -> str | None:
    """Return what is wrong with a wish on this machine; None when it can be met."""
    if wish.interface:
        found = next((each for each in network.interfaces if each.name == wish.interface), None)
        have = ", ".join(each.name for each in network.interfaces) or "none"
        if found is None:
            return f"this machine has no interface {wish.interface} (it has: {have})"
        if found.address is None or found.state == "down":
            return (
                f"interface {wish.interface} is {found.state} and has the address {found.address or 'none'}"
            )
    if wish.hcas:
        rdma, why = _rdma(network, wish)
        return None if rdma else why
    return None


def variables(choice: Choice, address: str, *, rdma: bool, own: Iterable[str]) -> dict[str, str]:
    """Return what NCCL and gloo are told for a member that the others reach at ``address``.

    Left alone, gloo takes the interface that the host's name resolves to, often loopback, and NCCL the first one.
    ``rdma``: all members have it. ``own`` are the names that the user set: a word on InfiniBand leaves it to them.
    """
    name = choice.names.get(address)
    told = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}
    if any(each.startswith("NCCL_IB_") or each == "NCCL_NET" for each in own):
        return told
    if rdma and choice.rdma:
        return {**told, "NCCL_IB_HCA": f"={','.join(choice.rdma)}"}
    return {**told, "NCCL_IB_DISABLE": "1"}


def _usable(each: Interface, wish: Wish, preferred: str) -> bool:
    if each.address is None or each.state == "down":
        return False
    if wish.interface:
        return each.name == wish.interface
    if _bare(each) == preferred:
        return True
    return not ipaddress.ip_interface(each.address).is_loopback and (not each.bridge or each.default_route)


def _bare(each: Interface) -> str:
    return (each.address or "").partition("/")[0]


def _rdma(network: Network, wish: Wish) -> tuple[list[RdmaPort], str]:
    """Return the ports for a run: those wished, else the fastest active ones; or none, and why."""
    if not network.ports:
        return [], "no RDMA adapter"
    if not network.verbs:
        return [], "RDMA adapters, but no /dev/infiniband/uverbs* to open them"
    ports = list(network.ports)
    if wish.hcas:
        ports = [port for port in ports if port.hca in wish.hcas or port.name in wish.hcas]
        if not ports:
            return [], f"none of the wished {', '.join(wish.hcas)} is here"
    active = [port for port in ports if port.state == "ACTIVE" and port.gid_type]
    if not active:
        seen = ", ".join(
            f"{port.name} {port.state}{'' if port.gid_type else ' without GID'}" for port in ports[:4]
        )
        return [], f"no RDMA port is active ({seen})"
    fastest = max(port.gbps for port in active)
    return [port for port in active if wish.hcas or port.gbps == fastest], ""


def _rdma_text(ports: list[RdmaPort]) -> str:
    kinds: dict[tuple[float, str], int] = {}
    for port in ports:
        kind = (port.gbps, "InfiniBand" if port.link_layer == "InfiniBand" else port.gid_type)
        kinds[kind] = kinds.get(kind, 0) + 1
    return "RDMA " + ", ".join(f"{count} × {gbps:g}G {kind}" for (gbps, kind), count in kinds.items())


def _tcp_text(each: Interface) -> str:
    speed = f" {each.speed_mbps / 1000:g}G" if each.speed_mbps else ""
    return f" ({each.name}{speed}, MTU {each.mtu})"


def describe(network: Network, wish: Wish, preferred: str) -> dict[str, Any]:
    """Return the wire form: everything found, and the choice in words."""
    return {
        "summary": wish_problem(network, wish) or choose(network, wish, preferred).summary,
        "interfaces": [asdict(each) for each in network.interfaces],
        "rdma": [asdict(each) for each in network.ports],
    }


# --- reading


def collect(root: Path = Path("/"), addresses: Mapping[str, str] | None = None) -> Network:
    """Read this machine's networks, or those of a recorded tree with its ``addresses`` by interface."""
    found = ipv4_addresses() if addresses is None else addresses
    routes = default_interfaces(_read(root / "proc/net/route"))
    folder = root / "sys/class/net"
    # `bonding_masters` is a file among them.
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return Network(
        interfaces=tuple(_interface(folder / name, found.get(name), name in routes) for name in names),
        ports=tuple(_ports(root / "sys/class/infiniband")),
        verbs=any((root / "dev/infiniband").glob("uverbs*")),
    )


def ipv4_addresses() -> dict[str, str]:
    """Return the first IPv4 address of each interface, with the length of its prefix."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:_NAME_BYTES])
            try:
                address = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]
                mask = fcntl.ioctl(probe.fileno(), _SIOCGIFNETMASK, request)[20:24]
            except OSError:
                continue  # it has none
            found[name] = f"{socket.inet_ntoa(address)}/{int.from_bytes(mask, 'big').bit_count()}"
    return found


def default_interfaces(route_table: str) -> frozenset[str]:
    """Return the interfaces with a default route, from the text of ``/proc/net/route``."""
    rows = [line.split() for line in route_table.splitlines()[1:]]
    return frozenset(
        row[0] for row in rows if len(row) > 7 and row[1] == _DEFAULT_ROUTE and row[7] == _DEFAULT_ROUTE
    )


def _interface(folder: Path, address: str | None, default_route: bool) -> Interface:
    speed = _number(_read(folder / "speed"))
    return Interface(
        name=folder.name,
        address=address,
        state=_read(folder / "operstate") or "unknown",
        mtu=_number(_read(folder / "mtu")) or 0,
        speed_mbps=speed if speed and speed > 0 else None,
        physical=(folder / "device").exists(),
        bridge=(folder / "bridge").is_dir(),
        default_route=default_route,
    )


def _ports(folder: Path) -> Iterable[RdmaPort]:
    for hca in sorted(folder.iterdir(), key=lambda path: _natural(path.name)) if folder.is_dir() else ():
        ports = hca / "ports"
        for port in sorted(ports.iterdir(), key=lambda path: path.name) if ports.is_dir() else ():
            yield RdmaPort(
                hca=hca.name,
                number=_number(port.name) or 0,
                state=_read(port / "state").rpartition(":")[2].strip(),
                gbps=float(_read(port / "rate").partition(" ")[0] or 0),
                link_layer=_read(port / "link_layer"),
                gid_type=_gid_type(port),
            )


def _gid_type(port: Path) -> str:
    """Return the type of the GIDs that the port has; RoCE v2 where it has several."""
    types = []
    for index in range(_MAX_GIDS):
        if _read(port / "gids" / str(index)) not in ("", _ZERO_GID):
            kind = _read(port / "gid_attrs/types" / str(index))
            types.append(
                "IB" if kind.startswith("IB/") and _read(port / "link_layer") == "InfiniBand" else kind
            )
    if "RoCE v2" in types:
        return "RoCE v2"
    return (types[0].replace("IB/RoCE", "RoCE") or "IB") if types else ""


def _natural(name: str) -> tuple[str, int]:
    found = re.search(r"\d+$", name)
    return (name[: found.start()], int(found[0])) if found else (name, -1)


def _number(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str:
    """Return a file's text; empty where there is none: an interface that is down has a `speed` that cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def port_is_free(port: int) -> bool:
    """True when the port can be bound on every address, as a rendezvous does."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: an old connection in TIME_WAIT is no holder.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True
