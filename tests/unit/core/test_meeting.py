"""Where a gang meets, of the addresses that its machines have."""

from __future__ import annotations

from airyard.core.meeting import Meeting, meeting_addresses


def at(*addresses: str) -> Meeting:
    return Meeting(addresses=addresses, port=1)


def test_known_addresses_in_one_subnet_are_taken() -> None:
    meetings = [at("10.0.0.1/24", "10.1.0.1/24"), at("10.0.0.2/24", "10.1.0.2/24")]
    assert meeting_addresses(["10.0.0.1", "10.0.0.2"], meetings) == ["10.0.0.1", "10.0.0.2"]


def test_else_the_first_subnet_that_all_have() -> None:
    meetings = [at("10.0.0.1/24", "10.1.0.1/24"), at("10.9.0.2/24", "10.1.0.2/24")]
    assert meeting_addresses(["10.0.0.1", "10.9.0.2"], meetings) == ["10.1.0.1", "10.1.0.2"]


def test_nobody_meets_where_two_machines_have_the_same_address() -> None:
    meetings = [at("10.0.0.1/24", "172.17.0.1/16"), at("10.9.0.2/24", "172.17.0.1/16")]
    assert meeting_addresses(["10.0.0.1", "10.9.0.2"], meetings) == ["10.0.0.1", "10.9.0.2"]


def test_routes_are_trusted_where_no_subnet_is_shared() -> None:
    assert meeting_addresses(["10.0.0.1", "10.9.0.2"], [at("10.0.0.1/24"), at("10.9.0.2/24")]) == [
        "10.0.0.1",
        "10.9.0.2",
    ]


def test_members_on_one_machine_and_runners_that_say_nothing() -> None:
    assert meeting_addresses(["127.0.0.1", "127.0.0.1"], [None, None]) == ["127.0.0.1"] * 2
    assert meeting_addresses(["10.0.0.1", "10.9.0.2"], [at("10.0.0.1/24"), None]) == ["10.0.0.1", "10.9.0.2"]


def test_two_members_on_one_of_two_machines() -> None:
    meetings = [at("10.0.0.1/24"), at("10.0.0.1/24"), at("10.0.0.2/24")]
    known = ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
    assert meeting_addresses(known, meetings) == known
