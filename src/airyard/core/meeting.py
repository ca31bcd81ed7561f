"""Where the members of a gang meet: which address of each, of those that its machine has.

Owns: what a member says of its network, and the choice. Must not know: how it was found out, how it is checked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What a ready member says of its network."""

    addresses: tuple[str, ...]
    """With the length of their prefix (``10.0.0.2/24``), the preferred one first. None: it meets no other machine."""
    port: int
    """Its runner listens here on all of them until its command has ended, so that the others can try."""
    rdma: bool = False
    network: str = ""
    """In words: ``RDMA 8 × 400G InfiniBand``, ``TCP only: why``."""
    store_port: int = 0
    """Free on the machine of member 0, for the checks of the gang; 0: nobody asked for any."""
    facts: tuple[tuple[str, str], ...] = ()
    """What is compared between the nodes of a gang (``core/health/gangs``)."""


def meeting_addresses(known: Sequence[str], meetings: Sequence[Meeting | None]) -> list[str]:
    """Return each member's address for the others; ``known`` are the addresses of their machines.

    These are taken when they lie in one subnet, or when no subnet holds an address of every member: then there are
    routes, or it will be found out. Else it is the first subnet, in the order of member 0, that holds one of each.
    """
    if len(set(known)) == 1 or any(each is None or not each.addresses for each in meetings):
        return list(known)
    options = [_by_subnet(each.addresses) for each in meetings if each is not None]
    ordered = sorted(options[0], key=lambda subnet: options[0][subnet] != known[0])
    for subnet in ordered:
        found = [option.get(subnet) for option in options]
        # Networks of containers have the same addresses everywhere: nobody meets there.
        if all(found) and len(set(found)) == len(set(known)):
            return [address for address in found if address is not None]
    return list(known)


@lru_cache(maxsize=4096)
def _by_subnet(addresses: tuple[str, ...]) -> Mapping[str, str]:
    """Return the first address in each subnet. Kept: every member's GO asks it of all members."""
    found: dict[str, str] = {}
    for text in addresses:
        interface = ipaddress.ip_interface(text)
        found.setdefault(str(interface.network), str(interface.ip))
    return found
