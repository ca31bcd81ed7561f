"""Which addresses messages of users may reach."""

from __future__ import annotations

import pytest

from airyard.adapters.webhook_post import Reach, post

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]
PRIVATE = [
    "10.1.2.3",
    "172.16.0.9",
    "192.168.1.1",
    "100.64.0.1",
    "fd00::1",
    "::ffff:10.1.2.3",
    "64:ff9b::a01:203",
]
NEVER = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "::",
    "fe80::1%eth0", "ff02::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "2002:a9fe:a9fe::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_reached(address: str) -> None:
    assert Reach().allows(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_networks_are_reached_where_that_is_allowed(address: str) -> None:
    assert not Reach().allows(address)
    assert Reach(allow_private=True).allows(address)


@pytest.mark.parametrize("address", NEVER)
def test_this_machine_and_its_link_are_reached_by_no_general_leave(address: str) -> None:
    assert not Reach().allows(address)
    assert not Reach(allow_private=True).allows(address)


@pytest.mark.parametrize(
    ("hosts", "host", "port", "expected"),
    [
        ({"chat.lan"}, "chat.lan", 443, True),
        ({"chat.lan:8065"}, "chat.lan", 8065, True),
        ({"chat.lan:8065"}, "chat.lan", 22, False),
        ({"chat.lan"}, "evil.chat.lan", 443, False),
        ({"[fd00::1]"}, "fd00::1", 443, True),
        (set(), "chat.lan", 443, False),
    ],
)
def test_hosts_that_are_allowed_by_name(hosts: set[str], host: str, port: int, expected: bool) -> None:
    assert Reach(hosts=frozenset(hosts)).names(host, port) is expected


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f000001", "127.1"])
def test_every_spelling_of_this_machine_is_refused_before_anything_is_sent(host: str) -> None:
    answer = post(f"http://{host}:9/", {}, b"", reach=Reach(allow_private=True))
    assert answer.status is None
    assert answer.refused or "resolved" in answer.problem, "a resolver may not know the odder spellings"
