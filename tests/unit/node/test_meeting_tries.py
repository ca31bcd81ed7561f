"""Tries between members, on loopback: a listener, a port that nobody has, an address that nobody answers."""

from __future__ import annotations

from airyard.node.meeting import MeetingPlace, Peer, lost_text, open_listener, try_peers
from airyard.node.network import Wish


def peer(member: int, port: int, address: str = "127.0.0.1") -> Peer:
    return Peer(member=member, machine=f"m{member}", address=address, port=port)


def test_a_listener_that_nobody_serves_answers_and_a_closed_one_refuses() -> None:
    listener = open_listener()
    assert listener is not None
    port = listener.getsockname()[1]
    assert try_peers([peer(1, port), peer(2, port)]).lost == ()
    listener.close()
    tried = try_peers([peer(1, port)])
    assert (tried.lost, tried.refused) == ((), (peer(1, port),))
    assert try_peers([]).lost == ()


def test_who_does_not_answer_is_named_with_both_ends() -> None:
    # Of TEST-NET-1: no host has it; what is in between may drop it or say so.
    tried = try_peers([peer(3, 9, "192.0.2.7")], timeout_s=0.2)
    (lost,) = tried.lost
    text = lost_text(peer(0, 1, "10.0.0.1"), [lost])
    assert "member 0 on m0 (10.0.0.1) cannot reach member 3 on m3 (192.0.2.7): " in text


def test_there_is_no_meeting_on_one_machine() -> None:
    place = MeetingPlace("127.0.0.1", Wish())
    assert place.open() is None
    met = place.meet(0, {"master_addr": "127.0.0.1"}, own=())
    assert (met.address, dict(met.variables), met.problem) == ("127.0.0.1", {}, "")
