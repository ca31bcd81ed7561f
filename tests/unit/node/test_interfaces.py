"""Interfaces by address. ``lo`` is the one that every machine has."""

from __future__ import annotations

from airyard.node.interfaces import collective_variables, interface_of


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.200") is None


def test_nothing_is_set_for_one_machine_or_for_an_address_of_none() -> None:
    assert collective_variables("127.0.0.1") == {}
    assert collective_variables("192.0.2.200") == {}
