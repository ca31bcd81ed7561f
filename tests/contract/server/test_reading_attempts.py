"""What is read of an attempt's logs, and what of its nodes' health is the attempt's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airyard.adapters.log_files import FileLogStore
from airyard.app.triaging import (
    AT_END_OCTETS,
    LEAST_OCTETS,
    health_events,
    judgement_of,
    may_be_confirmed,
    read,
    share_of,
)
from airyard.core import commands as c
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogRecord, LogStream, encode
from airyard.core.run import Attempt, Cause
from core_yard import Yard, node, workload


def an_attempt(nodes: int = 1, accelerator: str = "GPU_1xH100") -> tuple[Yard, Attempt]:
    """Start a run and let its first member fail."""
    yard = Yard(*(node(name, count=1) for name in "abc"))
    run_id = yard.submit(workload(accelerator, nodes))
    yard.place()
    yard.start(*(f"{run_id}.0.{index}" for index in range(nodes)))
    yard.later(60)
    yard.exit(f"{run_id}.0.0", Cause.USER_CODE)
    return yard, yard.run(run_id).attempts[0]


def put(store: FileLogStore, key: MemberKey, *texts: str) -> None:
    frames = b"".join(
        encode(LogRecord(stream=LogStream.STDERR, seq=number, time_ns=number, payload=text.encode()))
        for number, text in enumerate(texts)
    )
    store.append(key, frames)


def seen(at_ms: int, number: int, **fields: object) -> HealthEvent:
    told = {
        "event_id": f"e{number}", "rule": f"rule.{number}", "machine": "a", "node": "a", "at_ms": at_ms,
        "component": Component.NETWORK, "severity": Severity.HIGH, "source": Source.RDMA, "message": "odd",
    }  # fmt: skip
    return HealthEvent(**{**told, **fields})  # type: ignore[arg-type]  # fields of the record


def test_of_a_long_log_the_end_is_read_and_that_is_said(tmp_path: Path) -> None:
    store = FileLogStore(tmp_path)
    _, attempt = an_attempt()
    lines = [f"step {number} of a long training run\n" for number in range(20_000)]
    place = "pod:9:70 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1a000\n"
    put(store, attempt.member_key(0), place, "KeyError: 'early'\n", *lines, "ValueError: late\n")
    evidence = read(store, attempt, 64 << 10)
    assert {(one.rank, one.pid, one.host) for one in evidence.findings.places} == {
        (0, 9, attempt.members[0].node)
    }
    assert evidence.shortened == [0]
    assert [found.text for found in evidence.findings.findings] == ["ValueError: late"]
    judgement = judgement_of(evidence, attempt)
    assert judgement.missing == (
        "the end of the logs of node 0 and the beginning of the logs of node 0, which are long"
    )
    assert read(store, attempt).shortened == []
    store.close()


def test_all_members_share_what_is_read_at_the_end() -> None:
    _, attempt = an_attempt(nodes=2)
    assert share_of(attempt) == AT_END_OCTETS // 2
    many = replace(attempt, members=attempt.members * 500)
    assert share_of(many) == LEAST_OCTETS


def test_only_what_was_seen_of_its_nodes_and_devices_in_its_time_is_the_attempts(tmp_path: Path) -> None:
    yard, attempt = an_attempt(nodes=2)
    assert [member.node for member in attempt.members] == ["a", "b"]
    began_ms, ended_ms = attempt.placed_ms, yard.now_ms
    told = [
        seen(began_ms - 1, 1),
        seen(began_ms, 2),
        seen(ended_ms + 59_000, 3),
        seen(ended_ms + 61_000, 4),
        seen(ended_ms, 5, device=0),
        seen(ended_ms, 6, device=3),
        seen(ended_ms, 7, node="c"),
        seen(ended_ms, 8, node="b", severity=Severity.INFO),
        seen(ended_ms, 9, node="b", confirmed=False, source=Source.JOB_LOG),
    ]
    yard.later(120)
    yard.do(c.HealthReported(events=tuple(told)))
    found = {event.event_id: event for event in health_events(yard.state, attempt)}
    assert set(found) == {"e2", "e3", "e5", "e9"}
    assert (found["e5"].device_uuid, found["e5"].component) == ("a-0", Component.NETWORK)
    assert [found[name].confirmed for name in ("e2", "e9")] == [True, False]
    store = FileLogStore(tmp_path)
    verdict = judgement_of(read(store, attempt), attempt, list(found.values())).verdict
    store.close()
    assert verdict is not None
    assert (verdict.cause, verdict.confirmed, verdict.blamed_node) == (Cause.NETWORK, True, "a")
    assert not may_be_confirmed(verdict)


def test_the_rank_of_a_lost_gpu_is_read_from_where_its_runner_and_nccl_say_that_ranks_run(
    tmp_path: Path,
) -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload("GPU_8xH100"))
    yard.place()
    yard.start(f"{run_id}.0.0")
    yard.exit(f"{run_id}.0.0", Cause.USER_CODE)
    attempt = yard.run(run_id).attempts[0]
    store, key = FileLogStore(tmp_path), attempt.member_key(0)
    lines = [
        f"pod:{9 + rank}:70 [{rank}] NCCL INFO comm 0x1 rank {rank} nranks 8 cudaDev {rank} busId {rank + 1}a000\n"
        for rank in range(8)
    ]
    put(store, key, *lines)
    note = LogRecord(
        stream=LogStream.AIRYARD,
        seq=len(lines),
        time_ns=9,
        payload=b"ranks and their processes: 5 is 2188\nRuntimeError: CUDA error: uncorrectable ECC error\n",
    )
    store.append(key, encode(note))
    by_device = seen(yard.now_ms, 1, rule="gpu.lost", device=3, severity=Severity.CRITICAL)
    line = "NVRM: Xid (PCI:0000:ff:00): 119, pid=2188, name=python, Timeout after 6s of waiting for RPC"
    by_process = seen(yard.now_ms, 2, rule="xid.119", severity=Severity.CRITICAL, evidence=(line,))
    evidence = read(store, attempt)
    said = [judgement_of(evidence, attempt, [event]).verdict for event in (by_device, by_process)]
    store.close()

    assert [verdict.first_rank for verdict in said if verdict is not None] == [3, 5]
    assert not evidence.findings.findings  # what the runner notes is no finding
