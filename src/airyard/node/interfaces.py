"""Which network interface has an address, for libraries that want to be told by name.

Owns: that look-up. Must not know: who asks. Standard library only.
"""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 15


def interface_of(address: str) -> str | None:
    """Return the interface whose first IPv4 address this is; None when none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:_NAME_BYTES])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has none
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def collective_variables(address: str) -> dict[str, str]:
    """Return what lets gloo and NCCL meet over a member's address; nothing for a gang on one machine.

    Left alone, gloo takes the interface that the host's own name resolves to, often loopback, and NCCL the first one.
    """
    name = None if address.startswith("127.") else interface_of(address)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}
