"""The server's judge at work: the real loop, journal and log store, and the thread that reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.adapters.journal_sql import SqlJournal
from airyard.app.changes import ChangeFeed
from airyard.app.loop import ControlLoop
from airyard.core.actions import JudgeAttempt
from airyard.core.commands import DeclareJudging, HealthReported
from airyard.core.health.facts import HealthEvent
from airyard.core.log_frames import LogStream
from airyard.core.run import Attempt, Cause
from airyard.server.judges import Judges
from airyard.wire import native
from airyard.wire.explain import ExplainAnswer
from airyard.wire.triage import TriageAnswer
from server_yard import Yard, play, submit

PATIENCE_S = 30.0
GPU = {"accelerator": "GPU_1xA10", "nodes": 1}
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
TIMED_OUT = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)\n"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


@pytest.fixture
def judges(yard: Yard) -> Iterator[Judges]:
    one = Judges(yard.context.logs, yard.context.clock)
    one.start(yard.loop)
    # The wait is long here: a slow machine must not turn a verdict in time into a late one.
    yard.tell(DeclareJudging(wait_ms=60_000))
    yield one
    one.stop()


def work(yard: Yard, judges: Judges) -> None:
    """Carry out what the loop has asked for so far."""
    for action in [one for one in yard.actions if isinstance(one, JudgeAttempt)]:
        yard.actions.remove(action)
        judges.do(action)


async def judged(yard: Yard, judges: Judges, run_id: int, attempt: int = 0) -> Attempt:
    """Wait for the verdict; the run is queued again or held back then, so that it stays in memory."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        work(yard, judges)
        found = (await yard.record(run_id)).attempts[attempt]
        if found.judgement is not None and not found.live:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"attempt {run_id}.{attempt} was never judged")


async def begin(yard: Yard, client: httpx.AsyncClient, *printed: str, **changes: Any) -> tuple[int, str]:
    """Start a run that prints something; return its id and the node it is on."""
    run = await submit(client, max_retries=3, **changes)
    (key,) = await yard.begin(run["run_id"])
    yard.write(key, *printed, stream=LogStream.STDERR)
    return run["run_id"], (await yard.record(run["run_id"])).attempts[0].members[0].node


async def fail(yard: Yard, run_id: int, attempt: int = 0) -> None:
    run = await yard.record(run_id)
    await yard.finish(run.attempts[attempt].member_key(0), 1)


def fault(node: str, **changes: Any) -> dict[str, Any]:
    """A grave thing that does not stop what runs: it waits for more to be said against the node."""
    told = {
        "event_id": "e1", "rule": "ecc.pending", "machine": "host", "node": node,
        "at_ms": time.time_ns() // 1_000_000, "component": "GPU_MEMORY", "severity": "HIGH", "source": "NVML",
        "message": "a row of memory waits to be replaced", "device": 0, "evidence": ["pending: 1"],
    }  # fmt: skip
    return {**told, **changes}


def test_an_error_of_the_program_costs_a_retry_and_is_shown(yard: Yard, judges: Judges) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            run_id, _ = await begin(yard, client, "step 1\n", OOM)
            await fail(yard, run_id)
            attempt = await judged(yard, judges, run_id)
            assert attempt.cause is Cause.USER_CODE
            document = native.RunDoc.model_validate((await client.get(f"/runs/{run_id}")).json()["run"])
            judgement = document.attempts[0].judgement
            assert judgement is not None
            assert judgement.verdict is not None
            assert (judgement.in_time, judgement.logs, judgement.members) == (True, 1, 1)
            assert (judgement.verdict.failure_class, judgement.verdict.blamed_node) == ("user", None)
            assert judgement.verdict.evidence[0].text == OOM.strip()
            assert document.retries_spent == 1
            explained = ExplainAnswer.model_validate((await client.get(f"/runs/{run_id}/explain")).json())
            assert explained.judgement == judgement
            stored = TriageAnswer.model_validate((await client.get(f"/runs/{run_id}/triage")).json())
            fresh = TriageAnswer.model_validate(
                (await client.get(f"/runs/{run_id}/triage", params={"fresh": "true"})).json()
            )
            assert (stored.verdict, stored.judged_at) == (judgement.verdict, judgement.at)
            assert (fresh.verdict, fresh.judged_at) == (judgement.verdict, None)

    play(scene())


def test_what_a_monitor_says_during_the_wait_makes_it_the_devices_matter(yard: Yard, judges: Judges) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            run_id, node = await begin(yard, client, TIMED_OUT, compute=GPU)
            await fail(yard, run_id)
            work(yard, judges)
            answer = await client.post("/health/report", json={"events": [fault(node)]})
            assert answer.status_code == 200
            attempt = await judged(yard, judges, run_id)
            assert attempt.judgement is not None
            verdict = attempt.judgement.verdict
            assert verdict is not None
            assert (verdict.rule, verdict.confirmed, verdict.blamed_node) == ("ecc.pending", True, node)
            assert (attempt.cause, attempt.failure.node if attempt.failure else None) == (Cause.DEVICE, node)
            run = await yard.record(run_id)
            assert (run.retries_spent, run.text_excuses, run.avoid_nodes) == (0, 0, (node,))
            again = await yard.placed(run_id, 1)
            assert again.attempts[1].members[0].node != node

    play(scene())


def test_a_fault_of_another_device_or_of_before_is_no_excuse(yard: Yard, judges: Judges) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            early = time.time_ns() // 1_000_000 - 600_000
            run_id, node = await begin(yard, client, "KeyError: 'labels'\n", compute=GPU)
            reported = [
                fault(node, event_id="e1", at_ms=early),
                fault(node, event_id="e2", rule="ecc.other", device=7),
            ]
            yard.tell(HealthReported(events=tuple(map(HealthEvent.from_json, reported))))
            await fail(yard, run_id)
            attempt = await judged(yard, judges, run_id)
            assert attempt.cause is Cause.USER_CODE
            assert attempt.judgement is not None
            assert attempt.judgement.verdict is not None
            assert attempt.judgement.verdict.rule == "user.exception"

    play(scene())


def test_a_log_without_an_end_is_judged_and_told_of(yard: Yard, judges: Judges) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            yard.tell(DeclareJudging(wait_ms=4_000))
            run_id, _ = await begin(yard, client, OOM)
            key = (await yard.record(run_id)).attempts[0].member_key(0)
            closed = yard.close_log

            async def open_end(*_: Any) -> None:
                return None

            yard.close_log = open_end  # type: ignore[method-assign]  # this runner never says that its log is over
            await yard.finish(key, 1)
            yard.close_log = closed  # type: ignore[method-assign]  # as above
            attempt = await judged(yard, judges, run_id)
            assert attempt.judgement is not None
            assert (attempt.judgement.logs, attempt.judgement.members) == (0, 1)
            assert attempt.judgement.missing == "the end of the logs of node 0"
            assert attempt.judgement.verdict is not None
            assert attempt.judgement.verdict.rule == "user.gpu_memory"

    play(scene())


def test_logs_that_cannot_be_read_are_answered_for(yard: Yard, judges: Judges) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            run_id, _ = await begin(yard, client, OOM)

            judges._logs = _Broken()  # type: ignore[assignment]  # a store on a disk that fails
            await fail(yard, run_id)
            attempt = await judged(yard, judges, run_id)
            assert attempt.judgement is not None
            assert attempt.judgement.verdict is None
            assert "the disk is gone" in attempt.judgement.missing
            assert attempt.cause is Cause.USER_CODE

    play(scene())


def test_a_server_that_died_before_the_verdict_has_its_successor_judge(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            yard.tell(DeclareJudging(wait_ms=60_000))
            run_id, _ = await begin(yard, client, OOM)
            await fail(yard, run_id)
            assert (await yard.record(run_id)).attempts[0].live
            yard.loop.stop()
            yard.actions.clear()
            journal = SqlJournal(yard.home / "server" / "journal.db")
            clock = yard.context.clock
            yard.loop = ControlLoop(
                journal=journal, clock=clock, do=yard.actions.extend, changes=ChangeFeed()
            )
            yard.loop.start()
            successor = Judges(yard.context.logs, clock)
            successor.start(yard.loop)
            attempt = await judged(yard, successor, run_id)
            successor.stop()
            assert attempt.cause is Cause.USER_CODE
            assert attempt.judgement is not None
            assert attempt.judgement.logs == 1

    play(scene())


class _Broken:
    def end(self, key: object) -> None:
        raise OSError("the disk is gone")


def test_asked_twice_it_is_judged_once(yard: Yard, judges: Judges) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            run_id, _ = await begin(yard, client, OOM)
            await fail(yard, run_id)
            asked = JudgeAttempt(run_id=run_id, attempt=0, until_ms=yard.context.clock.now_ms() + 60_000)
            for _ in range(5):
                judges.do(asked)
            first = await judged(yard, judges, run_id)
            judges.do(asked)
            deadline = time.monotonic() + PATIENCE_S
            while judges._begun and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            assert (await yard.record(run_id)).attempts[0] == first
            kinds = [type(one.event).__name__ for one in yard.context.journal.events_after(0)]
            assert kinds.count("AttemptJudged") == 1

    play(scene())
