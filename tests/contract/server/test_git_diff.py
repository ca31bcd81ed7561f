"""The git diff of a run's code: taken with the submit, given back, kept while a run names it, sent to MLflow."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.adapters.tracking_off import NullTracker
from airyard.adapters.tracking_worker import TrackingWorker
from airyard.core.actions import CloseTracking
from airyard.core.code_tree import TreeEntry, tree_hash
from airyard.ports.tracker import ArtifactStored, OpenRun, TrackedRun, TrackedStatus
from airyard.server import sources
from airyard.server.effects import Effects
from airyard.wire import native
from server_yard import Yard, play, workload

DIFF = "diff --git a/a b/a\n-é\r\n+ü\r\n"
HASH = hashlib.sha256(DIFF.encode()).hexdigest()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


def folder(yard: Yard) -> Path:
    return yard.home / sources.FOLDER


async def with_code(client: httpx.AsyncClient, diff_hash: str | None = HASH) -> dict[str, Any]:
    """Upload a snapshot and return a workload that has it, with the hash of its diff."""
    data, text = io.BytesIO(), b"a"
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        info = tarfile.TarInfo("code/a")
        info.mode, info.size = 0o644, len(text)
        tar.addfile(info, io.BytesIO(text))
    name = tree_hash([TreeEntry(path="code/a", mode=0o644, digest=hashlib.sha256(text).hexdigest())])
    assert (await client.put(f"/code/{name}", content=data.getvalue())).status_code in (200, 201)
    git = {"packaging_mode": "plain_tar", "dirty": True, "diff_status": "captured", "diff_hash": diff_hash}
    return workload(code={"tree_hash": name, "directory_name": "code", "size_bytes": 1, "git": git})


def test_the_diff_comes_back_as_sent_and_goes_along_with_a_rerun(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            whole = await with_code(client)
            dry = await client.post("/runs", json={"workload": whole, "git_diff": DIFF, "dry_run": True})
            assert dry.status_code == 200, dry.text
            assert not folder(yard).exists()
            answer = await client.post("/runs", json={"workload": whole, "git_diff": DIFF})
            assert answer.status_code == 200, answer.text
            assert (folder(yard) / f"{HASH}.patch").read_bytes() == DIFF.encode()
            found = (await client.get("/runs/1/source")).json()
            native.SourceAnswer.model_validate(found)
            assert (found["git_diff"], found["source_yaml"]) == (DIFF, None)
            os.utime(folder(yard) / f"{HASH}.patch", (1, 1))
            await client.post("/runs", json={"workload": found["workload"]})
            assert (await client.get("/runs/2/source")).json()["git_diff"] == DIFF
            assert sources.names(folder(yard), before_ms=2_000) == set(), "named again, it is young again"
            await client.post("/runs", json={"workload": workload()})
            assert (await client.get("/runs/3/source")).json()["git_diff"] is None

    play(scene())


def test_a_diff_that_the_workload_does_not_name_is_refused(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:

            async def refused(whole: dict[str, Any], diff: str) -> str:
                answer = await client.post("/runs", json={"workload": whole, "git_diff": diff})
                assert answer.status_code == 400, answer.text
                return native.ErrorAnswer.model_validate(answer.json()).error_code

            assert await refused(await with_code(client), DIFF + "x") == "DIFF_MISMATCH"
            assert await refused(await with_code(client, None), DIFF) == "DIFF_MISMATCH"
            assert await refused(workload(), DIFF) == "DIFF_MISMATCH"
            assert await refused(await with_code(client, "../x"), DIFF) == "INVALID_ARGS"
            large = "é" * (native.MAX_DIFF_BYTES // 2)
            assert await refused(await with_code(client), large + "x") == "INVALID_ARGS"
            assert not folder(yard).exists()
            fits = await with_code(client, hashlib.sha256(large.encode()).hexdigest())
            answer = await client.post("/runs", json={"workload": fits, "git_diff": large})
            assert answer.status_code == 200, answer.text

    play(scene())


def test_the_sweep_keeps_a_diff_while_a_run_names_it(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            body = {"workload": await with_code(client), "git_diff": DIFF}
            for _ in range(2):
                await client.post("/runs", json=body)
            (folder(yard) / f"{'0' * 64}.patch").write_text("nobody's")
            for path in folder(yard).iterdir():
                os.utime(path, (1, 1))
            assert (await client.post("/admin/gc", json={})).json()["sources_removed"] == 1
            for run_id, left in ((1, 1), (2, 0)):
                (key,) = await yard.begin(run_id)
                await yard.finish(key)
                assert (await client.delete(f"/runs/{run_id}")).status_code == 200
                await client.post("/admin/gc", json={})
                assert len([*folder(yard).glob("*.patch")]) == left

    play(scene())


class Receiver(NullTracker):
    """Takes artifacts; ``ended`` is set with the run's end."""

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}
        self.ended = threading.Event()

    def open_run(self, request: OpenRun) -> TrackedRun:
        return TrackedRun(experiment_id="1", run_id="r")

    def put_artifact(self, run_id: str, artifact_path: str, source: Path) -> ArtifactStored:
        assert not self.ended.is_set()
        self.artifacts[artifact_path] = source.read_bytes()
        return ArtifactStored(stored=True)

    def finish_run(self, run_id: str, status: TrackedStatus, end_ms: int) -> None:
        self.ended.set()


class NoEngine:
    """An engine that has nothing to say."""

    def connect(self, sink: object) -> None:
        pass

    def check_node(self, *asked: object, **how: object) -> None:
        raise AssertionError("no checks are asked for")

    def pair_nodes(self, *asked: object, **how: object) -> None:
        raise AssertionError("no tests of pairs are asked for")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("diff", [DIFF, None])
def test_the_diff_becomes_an_artifact_before_the_tracked_run_ends(
    yard: Yard, tmp_path: Path, diff: str | None
) -> None:
    tracker = Receiver()
    worker = TrackingWorker(tracker)
    effects = Effects(
        engine=NoEngine(),  # type: ignore[arg-type]  # no action of this test goes to an engine
        worker=worker,
        logs=yard.context.logs,
        token_for=str,
        yard="yard",
        temporary=tmp_path / "tmp",
        find_diff=partial(sources.find, folder(yard), sources.Kind.DIFF),
    )

    async def scene() -> None:
        async with yard.client() as client:
            await client.post("/runs", json={"workload": await with_code(client), "git_diff": diff})
            (key,) = await yard.begin(1)
            yard.write(key, "hello\n")
            worker.start()
            effects.start(yard.loop)
            try:
                effects.do([CloseTracking(run_id=1, attempt=0)])
                assert tracker.ended.wait(10)
            finally:
                effects.stop()
                worker.stop()

    play(scene())
    sent = {} if diff is None else {"git/diff.patch": DIFF.encode()}
    assert tracker.artifacts == {**sent, "logs/node_0/output-000.log": b"hello\n"}
