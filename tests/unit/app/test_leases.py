"""The server's books of leases: who is declared gone, and when at the earliest."""

from __future__ import annotations

from dataclasses import replace

from airyard.app.leases import Leases, Reign, surely_over_ms
from airyard.core import events as e
from airyard.core.commands import DeclareLease
from airyard.core.decide import decide
from airyard.core.ids import MemberKey
from airyard.core.run import AttemptState, MemberPhase
from airyard.core.state import ClusterState
from core_samples import ATTEMPT, MACHINE, NODE, RUN

LEASE_MS = 24_000
HOUR_MS = 3_600_000
EPOCH = 7


def yard(*, alive: bool, epoch: int = EPOCH) -> tuple[ClusterState, MemberKey]:
    """Return a state with one live member of an attempt that was placed in ``epoch``."""
    member = replace(ATTEMPT.members[0], index=0, machine=MACHINE.name, phase=MemberPhase.RUNNING, exit=None)
    attempt = replace(
        ATTEMPT,
        number=0,
        epoch=epoch,
        members=(member,),
        state=AttemptState.RUNNING,
        outcome=None,
        cause=None,
        ended_ms=None,
    )
    run = replace(RUN, attempts=(attempt,))
    state = ClusterState(epoch=EPOCH)
    state.machines[MACHINE.name] = replace(MACHINE, alive=alive)
    state.nodes[NODE.name] = NODE
    state.runs[run.run_id] = run
    state.begun.add(run.run_id)
    return state, MemberKey(run.run_id, 0, 0)


def leases(*, longest_ms: int = LEASE_MS, begun_ms: int = 0) -> Leases:
    return Leases(epoch=EPOCH, lease_ms=LEASE_MS, longest_ms=longest_ms, begun_ms=begun_ms)


def gone_at(book: Leases, state: ClusterState, at_ms: int) -> bool:
    return bool(book.overdue(state, at_ms, at_ms))


def test_a_member_is_gone_a_margin_after_its_lease_and_answered_no_more() -> None:
    state, key = yard(alive=False)
    book = leases()
    assert book.heard(key, 100_000, epoch=EPOCH)
    assert not gone_at(book, state, 127_999)
    (gone,) = book.overdue(state, 128_000, 5)
    assert gone.seen.key == key
    assert gone.seen.exit is not None
    assert gone.seen.exit.cause is not None
    assert gone.seen.exit.cause.value == "NODE"
    assert "the lease ran out" in gone.seen.exit.message
    assert not book.heard(key, 128_001, epoch=EPOCH), "it might run on, and the journal say that it is lost"
    assert gone_at(book, state, 128_002), "it is said again until the state knows"


def test_a_machine_that_is_seen_loses_nobody() -> None:
    state, key = yard(alive=True)
    book = leases()
    book.heard(key, 0, epoch=EPOCH)
    assert not gone_at(book, state, HOUR_MS)


def test_a_new_leader_waits_for_what_earlier_ones_granted() -> None:
    state, key = yard(alive=False, epoch=EPOCH - 1)
    book = leases(longest_ms=HOUR_MS, begun_ms=1_000)
    over_ms = surely_over_ms(1_000, HOUR_MS)
    assert over_ms == 1_000 + HOUR_MS + 9_000
    assert not gone_at(book, state, over_ms - 1)
    assert gone_at(book, state, over_ms)
    # A poll that does not yet follow this leader may still count the old lease; the next one cannot.
    book = leases(longest_ms=HOUR_MS)
    book.heard(key, 10_000, epoch=EPOCH - 1)
    assert not gone_at(book, state, 10_000 + HOUR_MS)
    book.heard(key, 20_000, epoch=EPOCH)
    assert gone_at(book, state, 48_000)


def test_a_member_of_this_leader_that_never_asked_is_given_a_lease_from_when_it_was_missed() -> None:
    state, _ = yard(alive=False)
    book = leases()
    assert not gone_at(book, state, 500_000)
    assert gone_at(book, state, 528_000)


def test_a_hold_declares_nobody_gone_and_is_waited_for() -> None:
    state, key = yard(alive=True)
    book = leases()
    book.heard(key, 0, epoch=EPOCH, lease_s=24)
    book.hold(HOUR_MS)
    assert book.lease_s == 3600
    assert book.unheld(state) == [key]
    book.heard(key, 1, epoch=EPOCH, lease_s=24)
    assert book.unheld(state) == [key], "it has not taken the hold"
    book.heard(key, 2, epoch=EPOCH, lease_s=3600)
    assert book.unheld(state) == []
    state.machines[MACHINE.name] = replace(MACHINE, alive=False)
    assert not gone_at(book, state, 2 * HOUR_MS)


def test_a_reign_counts_from_when_its_renewal_was_sent() -> None:
    reign = Reign(4_000)
    assert not reign.holds(0)
    reign.renewed(1_000)
    reign.renewed(500)
    assert reign.holds(4_999)
    assert not reign.holds(5_000)


def test_the_journal_knows_the_longest_lease_and_that_nobody_was_seen_yet() -> None:
    state, _ = yard(alive=True)
    state.lease_longest_ms = HOUR_MS
    events = decide(state, DeclareLease(lease_ms=LEASE_MS, begins=True), 0).events
    assert events == (
        e.LeaseDeclared(lease_ms=LEASE_MS, longest_ms=HOUR_MS),
        e.MachineLeft(machine=MACHINE.name),
    )
    (settled,) = decide(state, DeclareLease(lease_ms=LEASE_MS, settled=True), 0).events
    assert settled == e.LeaseDeclared(lease_ms=LEASE_MS, longest_ms=LEASE_MS)
    book = leases(longest_ms=HOUR_MS)
    assert not book.settles(HOUR_MS)
    assert book.settles(HOUR_MS + 9_000)
    assert not book.settles(HOUR_MS + 9_000), "once"
