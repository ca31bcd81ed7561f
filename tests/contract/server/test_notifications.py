"""Messages reach a real receiver: tried again, given up, signed, and each under one id over restarts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airyard.adapters.notices_sql import SqlNoticeStore
from airyard.adapters.webhook_post import Reach, post
from airyard.app.notifying import FleetReceiver, Sender, queue_of
from airyard.core.cluster import Device, Machine, Node
from airyard.core.commands import CordonNodes, HealthReported, MachineSeen, SweepDone, Tick, UncordonNodes
from airyard.core.events import Recorded
from airyard.core.health.fabric_faults import edge_fault
from airyard.core.health.facility import QUIET_MS
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.health.idle_records import SweepNote
from airyard.core.notify import FleetNotice
from airyard.core.run import Run
from airyard.core.webhooks import GIVE_UP_AFTER_MS, LONGEST_PAUSE_MS
from airyard.ports.notice_store import Message, MessageState
from airyard.server import notifying
from airyard.server.notifying import Delivery, Notifier
from server_yard import Yard, play, submit
from webhook_receiver import HANG, Receiver

LOOPBACK = Reach(hosts=frozenset({"127.0.0.1"}))


class SetClock:
    """A clock that a test puts forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.ahead_ms


class Site:
    """A server's real parts, and notifiers over them that are started and stopped as servers are."""

    def __init__(self, home: Path) -> None:
        self.yard = Yard(home)
        self.clock = SetClock()
        self.store = SqlNoticeStore(home / "server" / "journal.db")
        self.yard.context.notices = self.store
        self._notifiers: list[Notifier] = []

    def notify(
        self,
        *,
        reach: Reach = LOOPBACK,
        fleet: tuple[FleetReceiver, ...] = (),
        secret: str | None = None,
        within_s: float = 10.0,
        leads: Callable[[], bool] = lambda: True,
    ) -> Notifier:
        """Start a notifier, as a server does."""
        context = self.yard.context
        delivery = Delivery(
            reach=reach,
            secret_of=lambda run, scope, key: context.secrets.get(run.owner, scope, key)[0],
            run_secret=secret,
            leads=leads,
            post=partial(post, within_s=within_s),
        )
        sender = Sender(yard="yard-1", server=context.url, fleet=fleet)
        notifier = Notifier(
            self.store,
            context.reads,
            sender,
            delivery,
            self.clock,
            end=lambda: self.yard.loop.peek(lambda control: control.state.seq),
            chance=lambda: 1.0,
        )
        notifier.start()
        self._notifiers.append(notifier)
        return notifier

    def run(self, *rules: dict[str, Any], code: int = 0) -> int:
        """Run a workload with these rules to its end."""
        found: list[int] = []

        async def scene() -> None:
            async with self.yard.client() as client:
                run_id = (await submit(client, notify=list(rules)))["run_id"]
                (key,) = await self.yard.begin(run_id)
                await self.yard.finish(key, code, permanent=True)
                found.append(run_id)

        play(scene())
        return found[0]

    def ask(self, path: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        async def scene() -> None:
            async with self.yard.client() as client:
                answer = await client.get(path)
                assert answer.status_code == 200, answer.text
                found.append(answer.json())

        play(scene())
        return found[0]

    def until(self, run_id: int | None, wanted: Callable[[Message], bool], timeout: float = 60) -> Message:
        """Wait until the one message of a run, or of the yard, is as wanted."""
        deadline = time.monotonic() + timeout
        while True:
            kept = self.store.of_run(run_id) if run_id is not None else self.store.newest(None, 10)
            if kept and wanted(kept[0]):
                return kept[0]
            assert time.monotonic() < deadline, kept
            time.sleep(0.02)

    def ended(self, run_id: int | None) -> Message:
        return self.until(run_id, lambda message: message.state is not MessageState.WAITING)

    def close(self) -> None:
        for notifier in self._notifiers:
            notifier.stop()
        self.store.close()
        self.yard.stop()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(notifying, "EVERY_S", 0.05)
    one = Site(tmp_path / "home")
    yield one
    one.close()


def rule(to: str, *on: str, **more: Any) -> dict[str, Any]:
    return {"on": list(on or ("done",)), "to": to, **more}


def test_a_message_arrives_once_and_signed(site: Site) -> None:
    site.yard.context.secrets.put("ada", "ops", "key", "whsec_YWJjZGVm", masked=True, now_ms=1)
    with Receiver() as receiver:
        site.notify(secret="the yard's own")
        run_id = site.run(rule(receiver.url, "failed", "done", secret="ops/key"), code=3)
        message = site.ended(run_id)
        second = site.run(rule(receiver.url))
        site.ended(second)
        first, other = receiver.received
    assert (message.state, message.tries) == (MessageState.DELIVERED, 1)
    assert first.genuine(b"abcdef")
    assert not first.genuine(b"abcdeg")
    assert other.genuine(b"the yard's own")
    assert (first.document["kind"], first.document["run"]["run_id"]) == ("failed", run_id)
    assert first.id == first.document["id"] == message.message_id
    assert first.headers["content-type"].startswith("application/json")
    assert first.path == "/hooks/airyard"


def test_without_any_secret_it_says_so_by_having_no_signature(site: Site) -> None:
    with Receiver() as receiver:
        site.notify()
        site.ended(site.run(rule(receiver.url)))
        assert "webhook-signature" not in receiver.received[0].headers


def test_what_fails_is_tried_again_under_the_same_id(site: Site) -> None:
    with Receiver([500, 429]) as receiver:
        site.notify()
        run_id = site.run(rule(receiver.url))
        for tries in (1, 2):
            waits = site.until(run_id, lambda message, tries=tries: message.tries == tries)  # type: ignore[misc]  # a default binds it
            assert waits.state is MessageState.WAITING
            assert waits.next_ms > site.clock.now_ms() - 2000
            told = site.ask(f"/runs/{run_id}/explain")["notifications"]
            assert [(one["state"], one["error"]) for one in told] == [("WAITING", waits.error)]
            site.clock.ahead_ms += LONGEST_PAUSE_MS
        message = site.ended(run_id)
        assert (message.state, message.tries) == (MessageState.DELIVERED, 3)
        assert len({one.id for one in receiver.received}) == 1
        assert len({one.body for one in receiver.received}) == 1
        assert site.ask(f"/runs/{run_id}/explain")["notifications"] == []


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_refusal_is_final_and_told(site: Site, status: int) -> None:
    with Receiver([status]) as receiver:
        site.notify()
        run_id = site.run(rule(receiver.url))
        message = site.ended(run_id)
        assert (message.state, message.error) == (MessageState.GIVEN_UP, f"answered {status}")
        (told,) = site.ask(f"/runs/{run_id}/explain")["notifications"]
        assert (told["state"], told["tries"], told["error"]) == ("GIVEN_UP", 1, f"answered {status}")
        assert told["to"] == receiver.url.removesuffix("/hooks/airyard"), "the path may be secret"
        listed = site.ask("/admin/notifications?state=given_up")
        assert listed["notifications"] == [told]
        assert listed["counts"] == {"WAITING": 0, "DELIVERED": 0, "GIVEN_UP": 1}
        assert len(receiver.received) == 1


def test_a_redirect_is_not_followed(site: Site) -> None:
    with Receiver() as elsewhere, Receiver([307], location=elsewhere.url) as receiver:
        site.notify()
        message = site.ended(site.run(rule(receiver.url)))
        assert (message.state, message.error) == (MessageState.GIVEN_UP, "answered 307")
        assert elsewhere.received == []


def test_one_who_never_answers_and_one_who_is_not_there_hold_up_nobody(site: Site) -> None:
    with socket.socket() as taken, Receiver([HANG] * 50) as hangs, Receiver() as well:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        site.notify(within_s=2.0)
        run_id = site.run(rule(hangs.url), rule(closed), rule(well.url))
        well.until(1)
        deadline = time.monotonic() + 60
        while True:
            kept = {one.target: one for one in site.store.of_run(run_id)}
            if all(one.tries for one in kept.values()) and kept[well.url].ended_ms is not None:
                break
            assert time.monotonic() < deadline, kept
            time.sleep(0.02)
        assert kept[well.url].state is MessageState.DELIVERED
        assert (kept[hangs.url].state, kept[hangs.url].error) == (
            MessageState.WAITING,
            "no answer within 2 s",
        )
        assert (kept[closed].state, kept[closed].error) == (MessageState.WAITING, "Connection refused")


def test_a_message_older_than_a_day_is_tried_once_more_and_then_given_up(site: Site) -> None:
    with Receiver([503]) as receiver:
        run_id = site.run(rule(receiver.url))
        site.clock.ahead_ms = GIVE_UP_AFTER_MS
        site.notify()
        message = site.ended(run_id)
        assert (message.state, message.tries, len(receiver.received)) == (MessageState.GIVEN_UP, 1, 1)


def test_users_messages_do_not_reach_this_machine_unless_it_is_allowed(site: Site) -> None:
    with Receiver() as receiver:
        site.notify(reach=Reach(allow_private=True), fleet=(to_fleet(receiver.url),))
        message = site.ended(site.run(rule(receiver.url)))
        assert message.state is MessageState.GIVEN_UP
        assert "no public address" in message.error
        assert message.tries == 1
        cordon(site)
        (only,) = receiver.until(1)
        assert only.document["kind"] == "node_cordoned", "the configuration's own receiver may be anywhere"


def to_fleet(url: str, secret: str | None = None) -> FleetReceiver:
    return FleetReceiver(on={FleetNotice.NODE_CORDONED}, to=url, secret=secret)


def cordon(site: Site) -> None:
    site.yard.tell(CordonNodes(nodes=("host-cpu-0",), by="ada", reason="dust"))


def test_the_yard_s_messages_are_signed_by_their_own_secret(site: Site) -> None:
    with Receiver() as receiver:
        site.notify(fleet=(to_fleet(receiver.url, "fleet secret"),), secret="another")
        cordon(site)
        (found,) = receiver.until(1)
        assert found.genuine(b"fleet secret")
        assert (found.document["node"], found.document["by"]) == ("host-cpu-0", "ada")
        assert found.document["run"] is None


def test_a_fault_between_nodes_is_told_once_and_once_when_it_is_over(site: Site) -> None:
    edge = edge_fault(("n1", "n2"))

    def sweep(number: int, **found: Any) -> None:
        note = SweepNote(number=number, at_ms=site.yard.context.clock.now_ms(), tests=9, **found)
        site.yard.tell(SweepDone(pool="CPU", sweep=note))

    with Receiver() as receiver:
        on = {FleetNotice.FABRIC_FAULT, FleetNotice.FABRIC_WELL}
        site.notify(fleet=(FleetReceiver(on=on, to=receiver.url),))
        for number in range(3):
            sweep(number, edges=(("n1", "n2"),))
        (found,) = receiver.until(1)
        assert (found.document["kind"], found.document["pool"]) == ("fabric_fault", "CPU")
        assert (found.document["message"], found.document["cause"]) == ("edge n1 - n2", "fabric.edge")
        assert "Pair tests in pool CPU found a fault between nodes: edge n1 - n2" in found.document["text"]
        assert found.document["command"] == "airyard health events"
        sweep(3, well=(edge,))
        sweep(4, well=(edge,))
        sweep(5, edges=(("n1", "n2"),))
        kinds = [one.document["kind"] for one in receiver.until(3)]
        # Their order is not promised.
        assert sorted(kinds) == ["fabric_fault", "fabric_fault", "fabric_well"]


def test_an_incident_of_a_rack_is_told_once_and_once_when_it_is_over(site: Site) -> None:
    now_ms = site.yard.context.clock.now_ms()
    racked = tuple(
        Node(
            name=name,
            machine="racked",
            accelerator="GPU_1xH100",
            model="H100",
            devices=(Device(index=0, uuid=f"GPU-{name}"),),
            cpus=4.0,
            memory_bytes=8 << 30,
            labels={"rack": "r3"},
        )
        for name in ("n0", "n1")
    )
    machine = Machine(name="racked", boot_id="boot", address="127.0.0.1")
    site.yard.tell(MachineSeen(machine=machine, nodes=racked, members=()))
    brakes = tuple(
        HealthEvent(
            event_id=one.name,
            rule="gpu.throttled_long",
            machine="racked",
            node=one.name,
            at_ms=now_ms - QUIET_MS - 60_000,
            component=Component.FACILITY,
            severity=Severity.HIGH,
            source=Source.NVML,
            message="slowed down",
        )
        for one in racked
    )
    with Receiver() as receiver:
        on = {FleetNotice.FACILITY_INCIDENT, FleetNotice.FACILITY_WELL, FleetNotice.NODE_QUARANTINED}
        site.notify(fleet=(FleetReceiver(on=on, to=receiver.url),))
        site.yard.tell(HealthReported(events=brakes))
        site.yard.tell(HealthReported(events=brakes))
        for _ in range(3):
            site.yard.tell(Tick())
        found = {one.document["kind"]: one.document for one in receiver.until(2)}
        assert set(found) == {"facility_incident", "facility_well"}
        begun, over = found["facility_incident"], found["facility_well"]
        for document in found.values():
            assert (document["place"], document["cause"], document["node"]) == (
                "rack r3",
                "facility.power",
                None,
            )
            assert document["command"] == "airyard health events"
        assert begun["text"].startswith(
            "Power of rack r3 fails, no node is blamed: the power brake is on at 2 of 2"
        )
        assert over["text"].startswith("Power of rack r3 is well again: none of its 2 nodes")


def test_an_address_may_be_a_secret_and_is_never_shown(site: Site) -> None:
    with Receiver() as receiver:
        site.yard.context.secrets.put("ada", "ops", "chat", receiver.url, masked=True, now_ms=1)
        site.notify()
        run_id = site.run(rule("{{secrets/ops/chat}}"))
        message = site.ended(run_id)
        assert message.state is MessageState.DELIVERED
        assert receiver.url not in repr(site.store.of_run(run_id)) + repr(site.ask("/admin/notifications"))
        site.yard.context.secrets.delete("ada", "ops", "chat")


def test_a_secret_that_nobody_stored_refuses_the_submit(site: Site) -> None:
    async def scene() -> None:
        async with site.yard.client() as client:
            for one in (rule("{{secrets/ops/chat}}"), rule("https://a.example/", secret="ops/chat")):
                body = {"workload": {**WORKLOAD, "notify": [one]}, "idempotency_key": None}
                answer = await client.post("/runs", json=body)
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, "SECRET_NOT_FOUND")

    play(scene())


WORKLOAD = {"experiment": "e", "command": "true", "compute": {"accelerator": "CPU"}}


def test_a_secret_that_is_gone_or_no_address_gives_the_message_up(site: Site) -> None:
    site.yard.context.secrets.put("ada", "ops", "chat", "plainly-none", masked=True, now_ms=1)
    site.notify()
    message = site.ended(site.run(rule("{{secrets/ops/chat}}")))
    assert message.state is MessageState.GIVEN_UP
    assert message.error.startswith("the secret holds no address")
    assert "plainly-none" not in message.error


def test_what_was_committed_before_a_notifier_began_is_told_and_nothing_twice(site: Site) -> None:
    with Receiver() as receiver:
        first = site.run(rule(receiver.url))
        site.notify().stop()
        site.ended(first)
        second = site.run(rule(receiver.url))
        site.notify()
        site.ended(second)
        third = site.run(rule(receiver.url))
        site.ended(third)
        assert [one.document["run"]["run_id"] for one in receiver.received] == [first, second, third]
        assert len({one.id for one in receiver.received}) == 3


def test_a_mark_that_is_behind_makes_no_second_message(site: Site) -> None:
    with Receiver() as receiver:
        before = site.notify()
        site.ended(site.run(rule(receiver.url)))
        before.stop()  # a server has one: two would both deliver what comes next
        site.store.keep([], 0)
        site.notify()
        site.ended(site.run(rule(receiver.url)))
        assert len(receiver.received) == 2


def test_a_run_that_is_removed_at_once_is_told_all_the_same(site: Site) -> None:
    with Receiver() as receiver:
        run_id = site.run(rule(receiver.url))

        async def scene() -> None:
            async with site.yard.client() as client:
                while (await client.delete(f"/runs/{run_id}")).status_code == 409:
                    await asyncio.sleep(0.05)

        play(scene())
        assert site.yard.context.reads.run(run_id) is None
        site.notify()
        assert receiver.until(1)[0].document["run"]["run_id"] == run_id


def test_who_does_not_lead_sends_nothing(site: Site) -> None:
    leads: list[bool] = []
    with Receiver() as receiver:
        site.notify(leads=lambda: bool(leads))
        run_id = site.run(rule(receiver.url))
        site.until(run_id, lambda message: message.state is MessageState.WAITING)
        time.sleep(10 * notifying.EVERY_S)
        assert receiver.received == []
        leads.append(True)
        receiver.until(1)


def test_what_overfills_a_queue_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "MOST_IN_QUEUE", 2)
    with Receiver() as receiver:
        for _ in range(3):
            site.run(rule(receiver.url))
        site.notify(leads=lambda: False)
        newest = site.ended(3)
        assert (newest.state, newest.error) == (MessageState.GIVEN_UP, "2 messages wait already")
        assert site.store.counts() == {"WAITING": 2, "GIVEN_UP": 1}


def test_a_bug_met_by_one_event_holds_up_no_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Sender.messages

    def broken(self: Sender, recorded: Recorded, find_run: Callable[[int], Run | None]) -> list[Message]:
        if type(recorded.event).__name__ == "NodeCordoned":
            raise KeyError("a bug")
        return whole(self, recorded, find_run)

    monkeypatch.setattr(Sender, "messages", broken)
    with Receiver() as receiver:
        site.notify(fleet=(to_fleet(receiver.url),))
        cordon(site)
        site.ended(site.run(rule(receiver.url)))
        assert len(receiver.received) == 1


def backlog(site: Site, count: int) -> None:
    """Have so many things happen to the yard that its receivers are told of."""
    for number in range(count):
        site.yard.tell(CordonNodes(nodes=("host-cpu-0",), by="ada", reason=f"number {number}"))
        site.yard.tell(UncordonNodes(nodes=("host-cpu-0",), by="ada"))


def test_a_backlog_of_one_who_never_answers_delays_nobody_else(site: Site) -> None:
    with Receiver([HANG] * 10_000) as hangs, Receiver() as well:
        fleet = (to_fleet(hangs.url), to_fleet(well.url))
        backlog(site, 300)
        site.notify(fleet=fleet, within_s=10.0)
        well.until(300, timeout=90)
        taken_off = time.monotonic() + 10  # which is done once the last one's answer was read
        while queue_of("", well.url) in site.store.queues() and time.monotonic() < taken_off:
            time.sleep(0.05)
        assert site.store.queues() == {queue_of("", hangs.url): 300}
        began = time.monotonic()
        backlog(site, 1)
        well.until(301)
        assert time.monotonic() - began < 8.0, "it does not wait for the one that hangs"
        assert len(hangs.received) < 60, "it is let rest, whichever of its messages is next"


def test_many_dead_receivers_of_one_owner_leave_room_for_those_that_answer(site: Site) -> None:
    with ExitStack() as stack, Receiver() as well, Receiver() as fresh:
        deaf = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(10)]
        dead = [f"http://127.0.0.1:{one.getsockname()[1]}/" for one in deaf]  # they take it and never answer
        site.notify(fleet=tuple(to_fleet(url) for url in (*dead, well.url)), within_s=8.0)
        backlog(site, 1)
        well.until(1, timeout=90)
        for count in range(2, 6):
            began = time.monotonic()
            backlog(site, 1)
            well.until(count)
            assert time.monotonic() - began < 6.0, "less than one of the dead ones takes"
            time.sleep(1.0)
        run_id = site.run(rule(fresh.url))
        fresh.until(1, timeout=8)
        assert site.ended(run_id).state is MessageState.DELIVERED


def test_a_full_store_costs_those_that_do_not_answer_and_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "MOST_WAITING", 5)
    monkeypatch.setattr(notifying, "ALWAYS_KEPT", 2)
    with Receiver([HANG] * 1_000) as hangs, Receiver() as well:
        site.notify(fleet=(to_fleet(hangs.url),), within_s=5.0)
        backlog(site, 8)
        deadline = time.monotonic() + 30
        while site.store.counts() != {"WAITING": 5, "GIVEN_UP": 3}:
            assert time.monotonic() < deadline, site.store.counts()
            time.sleep(0.05)
        assert site.ended(site.run(rule(well.url))).state is MessageState.DELIVERED
