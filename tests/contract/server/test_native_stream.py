"""Following a run and reading its logs over the native API: order, cursors, ends, two readers at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.core.log_frames import Gap, LogStream, encode
from airyard.wire import native
from server_yard import StreamReader, Yard, lines, play, submit


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


async def whole(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return all objects of an answer that ends."""
    answer = await client.get(path, params=query, timeout=30)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines() if line]


def test_a_stream_tells_the_whole_story(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client, StreamReader(yard, "/runs/1/stream") as early:
            assert early.task is not None
            await early.task
            assert early.status == 404
            await submit(client)
            async with StreamReader(yard, "/runs/1/stream") as stream:
                first = await stream.until("STATUS")
                native.RunDoc.model_validate(first["run"])
                (key,) = await yard.begin(1)
                yard.write(key, "one\ntw", "o\n")
                assert (await stream.until("LOG"))["line"] == "one"
                found = await stream.until("LOG")
                assert (found["line"], found["stream"], found["node"]) == ("two", "stdout", 0)
                yard.write(key, "ValueError: no\n", stream=LogStream.STDERR)
                alert = await stream.until("ALERT")
                assert (alert["kind"], alert["node"]) == ("EXCEPTION", 0)
                yard.write(key, "no newline at the end")
                await yard.finish(key, 3, permanent=True)
                last = await stream.until("TERMINAL")
                assert last["exit_code"] == 1
                assert last["run"]["logs_complete"] is True
            assert lines(stream.seen) == ["one", "two", "ValueError: no", "no newline at the end"]
            statuses = [found["run"]["status"] for found in stream.seen if found["type"] == "STATUS"]
            assert statuses[-1] == "FAILED"
            assert [found["type"] for found in stream.seen].count("TERMINAL") == 1

    play(scene())


def test_a_stream_goes_on_from_every_cursor(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client, compute={"accelerator": "CPU", "nodes": 2}, max_retries=1)
            first, second = await yard.begin(1)
            yard.write(first, "a1\na2\na", "3\n")
            yard.write(second, "b1 out ", time_ns=5)
            yard.write(second, "b1 err\n", stream=LogStream.STDERR, time_ns=6)
            yard.write(second, "ends\nb2", time_ns=7)
            for key in (first, second):
                await yard.finish(key, 7)
            third, fourth = await yard.begin(1, 1)
            yard.write(third, "c1\n")
            for key in (third, fourth):
                await yard.finish(key)
            story = await whole(client, "/runs/1/stream")
            assert [found["type"] for found in story].count("RETRY") == 1
            assert sorted(lines(story)) == ["a1", "a2", "a3", "b1 err", "b1 out ends", "b2", "c1"]
            kinds = [found["type"] for found in story]
            assert kinds.index("RETRY") < kinds.index("LOG", kinds.index("RETRY"))
            for index, found in enumerate(story[:-1]):
                rest = await whole(client, "/runs/1/stream", cursor=found["cursor"])
                assert [_told(each) for each in rest] == [_told(each) for each in story[index + 1 :]]

    play(scene())


def _told(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in ("cursor", "run")}


def test_a_live_stream_can_be_left_and_taken_up_again(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            (key,) = await yard.begin(1)
            yard.write(key, "one\ntwo\nthr")
            async with StreamReader(yard, "/runs/1/stream") as stream:
                cursor = (await stream.until("LOG", line="one"))["cursor"]
            yard.write(key, "ee\nfour\n")
            async with StreamReader(yard, f"/runs/1/stream?cursor={cursor}") as again:
                await again.until("LOG", line="four")
            assert lines(again.seen) == ["two", "three", "four"]
            assert code(await client.get("/runs/1/stream", params={"cursor": "odd"})) == "BAD_CURSOR"
            assert code(await client.get("/runs/1/stream", params={"cursor": "1:0:x;y"})) == "BAD_CURSOR"
            await yard.finish(key)

    play(scene())


def code(answer: httpx.Response) -> str:
    return native.ErrorAnswer.model_validate(answer.json()).error_code


def test_two_readers_of_one_log_see_the_same(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            (key,) = await yard.begin(1)
            async with (
                StreamReader(yard, "/runs/1/stream") as one,
                StreamReader(yard, "/runs/1/stream") as other,
            ):
                for number in range(50):
                    yard.write(key, f"line {number}\n")
                await yard.finish(key)
                await asyncio.gather(one.until("TERMINAL"), other.until("TERMINAL"))
            assert lines(one.seen) == lines(other.seen) == [f"line {number}" for number in range(50)]

    play(scene())


def test_without_logs_only_the_course_is_told(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            (key,) = await yard.begin(1)
            yard.write(key, "one\n")
            await yard.finish(key)
            story = await whole(client, "/runs/1/stream", logs=False)
            assert [found["type"] for found in story] == ["STATUS", "TERMINAL"]

    play(scene())


def test_a_run_that_never_started_ends_its_stream(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            for _ in range(3):
                await submit(client)
            await yard.placed(2)
            async with StreamReader(yard, "/runs/3/stream") as stream:
                found = await stream.until("STATUS")
                while found["run"]["pending"]["reason"] != "NO_FREE_NODES":
                    found = await stream.until("STATUS")
                await client.post("/runs/3/cancel")
                last = await stream.until("TERMINAL")
            assert last["exit_code"] == 6

    play(scene())


def test_a_gap_is_shown_as_a_gap(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            (key,) = await yard.begin(1)
            yard.write(key, "before\n")
            gap = Gap(first_seq=1, last_seq=4, payload_bytes=99, reason="the spool was full")
            yard.context.logs.append(key, encode(gap.record(9)))
            yard.write(key, "after\n")
            await yard.finish(key)
            story = [found for found in await whole(client, "/runs/1/logs") if found["type"] != "STATUS"]
            assert [found["type"] for found in story] == ["LOG", "GAP", "LOG", "END"]
            gone = {"first_seq": 1, "last_seq": 4, "bytes": 99, "reason": "the spool was full"}
            assert {name: story[1][name] for name in gone} == gone
            assert story[-1]["complete"] is True

    play(scene())


def test_logs_with_filters(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            assert (await client.get("/runs/1/logs")).status_code == 404
            await submit(client, compute={"accelerator": "CPU", "nodes": 2})
            first, second = await yard.begin(1)
            yard.write(first, "a1\na2\n", time_ns=1_000_000_000)
            yard.write(second, "b1\n", time_ns=1_500_000_000)
            yard.write(first, "a3\n", time_ns=2_000_000_000)
            path = "/runs/1/logs"
            found = await whole(client, path)
            assert lines(found) == ["a1", "a2", "b1", "a3"]
            assert found[-1]["complete"] is False
            assert lines(await whole(client, path, node=1)) == ["b1"]
            assert lines(await whole(client, path, tail=2)) == ["b1", "a3"]
            assert lines(await whole(client, path, tail=0)) == []
            assert lines(await whole(client, path, since_ms=1400)) == ["b1", "a3"]
            assert lines(await whole(client, path, grep="a[13]")) == ["a1", "a3"]
            assert code(await client.get(path, params={"grep": "["})) == "BAD_PATTERN"
            yard.write(second, "a" * 60 + "!\n", time_ns=2_100_000_000)
            slow = {"grep": "^a.$|(a+)+$"}
            assert code(await client.get(path, params=slow)) == "PATTERN_TOO_SLOW"
            assert code(await client.get(path, params={"node": 2})) == "NO_NODE"
            assert code(await client.get(path, params={"attempt": 1})) == "NO_ATTEMPT"
            for key in (first, second):
                await yard.finish(key)
            end = (await whole(client, path, attempt=0))[-1]
            assert end["complete"] is True
            assert [member["node"] for member in end["members"]] == [0, 1]
            raw = await client.get("/runs/1/logs/raw", params={"node": 0})
            assert raw.content == b"a1\na2\na3\n"

    play(scene())


def test_following_logs_waits_for_the_first_attempt_and_ends_with_it(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            for _ in range(3):
                await submit(client)
            blocking = (await yard.begin(1))[0]
            await yard.placed(2)
            async with StreamReader(yard, "/runs/3/logs?follow=true&tail=10") as stream:
                assert (await whole(client, "/runs/3/logs"))[-1]["attempt"] is None
                await yard.finish(blocking)
                (key,) = await yard.begin(3)
                yard.write(key, "one\n")
                await stream.until("LOG", line="one")
                yard.write(key, "two\n")
                await yard.finish(key)
                end = await stream.until("END")
            assert (lines(stream.seen), end["complete"]) == (["one", "two"], True)

    play(scene())
