"""The rest of the native API: identity, the gate, status, nodes, pools, code, secrets, files, stopping."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from airyard.app.orders import OrderDesk
from airyard.app.retention import Keep, RetentionPolicy
from airyard.core.code_tree import TreeEntry, tree_hash
from airyard.server.routes_runner import MAX_BATCH_BYTES, router
from airyard.wire import native, policy
from airyard.wire.nodes import NodesAnswer
from server_yard import TOKEN, Yard, play, submit, workload


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


def code(answer: httpx.Response) -> str:
    return native.ErrorAnswer.model_validate(answer.json()).error_code


def test_the_server_proves_itself_before_it_asks(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            answer = await client.get("/identify", params={"nonce": "n" * 16}, headers={"authorization": ""})
            found = answer.json()
            expected = hmac.new(TOKEN.encode(), b"n" * 16, hashlib.sha256).hexdigest()
            assert (found["service"], found["protocol"], found["proof"]) == ("airyard", 1, expected)

    play(scene())


@pytest.mark.parametrize("path", ["/status", "/runs", "/nothing", "/openapi.json", "/runs/1/stream"])
def test_nothing_is_told_without_a_token(yard: Yard, path: str) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            answer = await client.get(path, headers={"authorization": "Bearer wrong"})
            assert (answer.status_code, code(answer)) == (401, "UNAUTHENTICATED")
            answer = await client.get(path, headers=yard.as_attempt())
            assert (answer.status_code, code(answer)) == (403, "NOT_A_PERSON")

    play(scene())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"[" * 200_000,
        b'{"protocol":1}',
        b'{"protocol":1,"epoch":1,"reports":[1]}',
        b'{"protocol":1,"epoch":1,"reports":7}',
        b'{"protocol":1,"epoch":1,"reports":[{"kind":"READY","number":"x"}]}',
        b'{"protocol":1,"epoch":1,"reports":[{"kind":"XX","number":1}]}',
        b" " * (MAX_BATCH_BYTES + 1),
    ],
    ids=lambda body: body[:40].decode(),
)
def test_what_no_runner_reports_is_refused(yard: Yard, body: bytes) -> None:
    yard.app.include_router(router(OrderDesk.__new__(OrderDesk)))  # reports do not reach the desk

    async def scene() -> None:
        async with yard.client() as client:
            headers = yard.as_attempt()
            answer = await client.post("/runner/reports", content=body, headers=headers)
            expected = "BATCH_TOO_LARGE" if len(body) > MAX_BATCH_BYTES else "BAD_REPORT"
            assert (answer.status_code, code(answer)) == (400, expected)

    play(scene())


def test_every_failure_has_the_wire_form(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            answer = await client.get("/nothing")
            assert (answer.status_code, code(answer)) == (404, "NO_SUCH_PATH")
            answer = await client.put("/status")
            assert (answer.status_code, code(answer)) == (405, "METHOD_NOT_ALLOWED")
            answer = await client.post("/runs", content=b"{", headers={"content-type": "application/json"})
            assert (answer.status_code, code(answer)) == (400, "INVALID_ARGS")
            large = b'"' + b"x" * (9 << 20) + b'"'
            answer = await client.post("/runs", content=large, headers={"content-type": "application/json"})
            assert (answer.status_code, code(answer)) == (413, "TOO_LARGE")

    play(scene())


def test_a_bug_becomes_a_500_that_tells_nothing_but_its_number(yard: Yard) -> None:
    @yard.app.get("/fleet/v1/identify")
    def broken() -> None:
        raise ZeroDivisionError("a secret detail")

    async def scene() -> None:
        async with yard.client() as client:
            answer = await client.get("http://yard/fleet/v1/identify")
            assert (answer.status_code, code(answer)) == (500, "INTERNAL_ERROR")
            assert "secret" not in answer.text
            assert answer.headers["x-request-id"] in answer.json()["message"]

    play(scene())


def test_status_nodes_and_pools(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client, compute={"accelerator": "GPU_1xA10", "nodes": 1})
            await yard.placed(1)
            found = (await client.get("/status")).json()
            assert found["counts"] == {"queued": 0, "active": 1}
            assert found["journal"]["bytes"] > 0
            assert found["mlflow"]["kind"] == "off"
            assert found["ports"] == {"http": 8008}
            nodes = (await client.get("/nodes")).json()
            NodesAnswer.model_validate(nodes)
            busy = [node for node in nodes["nodes"] if node["devices"][0]["state"] == "booked"]
            assert [(node["name"], node["devices"][0]["run_id"]) for node in busy] == [("sim-1xa10-0", 1)]
            pools = (await client.get("/pools")).json()
            policy.PoolsAnswer.model_validate(pools)
            free = {pool["name"]: (pool["free_devices"], pool["devices"]) for pool in pools["pools"]}
            assert free == {"CPU": (2, 2), "GPU_1xA10": (1, 2)}

    play(scene())


def test_openapi_describes_the_api(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            found = (await client.get("/openapi.json")).json()
            assert "/api/v1/runs/{ref}/stream" in found["paths"]
            assert "RunDoc" in json.dumps(found)

    play(scene())


def archive(**files: str) -> tuple[str, bytes]:
    """Return a snapshot's hash and its tar.gz."""
    data, entries = io.BytesIO(), []
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"code/{name}")
            info.mode, info.size = 0o644, len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
            digest = hashlib.sha256(text.encode()).hexdigest()
            entries.append(TreeEntry(path=info.name, mode=0o644, digest=digest))
    return tree_hash(entries), data.getvalue()


def test_code_is_taken_only_under_its_own_hash(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            name, data = archive(a="1", b="2")
            assert (await client.head(f"/code/{name}")).status_code == 404
            wrong = await client.put(f"/code/{'0' * 64}", content=data)
            assert (wrong.status_code, code(wrong)) == (400, "CODE_HASH_MISMATCH")
            assert code(await client.put(f"/code/{name}", content=b"nonsense")) == "BAD_ARCHIVE"
            assert code(await client.put(f"/code/{name}", content=data[:-20])) == "BAD_ARCHIVE"
            assert (await client.put(f"/code/{name}", content=data)).status_code == 201
            assert (await client.head(f"/code/{name}")).status_code == 204
            assert (await client.put(f"/code/{name}", content=data)).status_code == 201
            snapshot = {"tree_hash": name, "directory_name": "code", "size_bytes": 2}
            run = await submit(client, code=snapshot)
            assert run["code"]["tree_hash"] == name
            assert code(await client.put("/code/../x", content=data)) == "NO_SUCH_PATH"

    play(scene())


def test_an_archive_that_leaves_its_folder_is_refused(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            for name in ("/etc/passwd", "code/../../x", "alone"):
                data = io.BytesIO()
                with tarfile.open(fileobj=data, mode="w:gz") as tar:
                    tar.addfile(tarfile.TarInfo(name))
                answer = await client.put(f"/code/{'1' * 64}", content=data.getvalue())
                assert code(answer) == "BAD_ARCHIVE"

    play(scene())


def test_secrets_go_in_and_never_come_back(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            answer = await client.put("/secrets/hub/token", json={"value": "s3cret-value"})
            assert answer.status_code == 200, answer.text
            listed = await client.get("/secrets")
            assert "s3cret" not in listed.text
            (name,) = listed.json()["secrets"]
            assert (name["scope"], name["key"], name["masked"]) == ("hub", "token", True)
            await submit(client, secrets={"TOKEN": "hub/token"})
            assert (await client.delete("/secrets/hub/token")).status_code == 200
            assert (await client.delete("/secrets/hub/token")).status_code == 404
            bad = await client.put("/secrets/hub/token", json={"value": 7})
            assert code(bad) == "INVALID_ARGS"

    play(scene())


def test_output_files_and_nothing_else(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            path = "/runs/1/files"
            assert (await client.get(path)).json()["files"] == []
            output = yard.home / "node/runs/1/output"
            (output / "best").mkdir(parents=True)
            (output / "best/model.bin").write_bytes(b"weights")
            (output / "link").symlink_to(yard.home / "server")
            (output / "best/escape").symlink_to("/etc/passwd")
            os.mkfifo(output / "pipe")
            listed = (await client.get(path)).json()["files"]
            assert [(file["path"], file["kind"]) for file in listed] == [("best", "folder")]
            listed = (await client.get(path, params={"path": "best"})).json()["files"]
            assert [(file["path"], file["bytes"]) for file in listed] == [("best/model.bin", 7)]
            answer = await client.get(path, params={"path": "best/model.bin"})
            assert answer.content == b"weights"
            for bad in ("../1", "best/../../x", "/etc/passwd"):
                assert code(await client.get(path, params={"path": bad})) == "BAD_PATH"
            for bad in ("link/journal.db", "link", "best/escape", "pipe"):
                assert (await client.get(path, params={"path": bad})).status_code in (400, 404)
            assert code(await client.get(path, params={"path": "none"})) == "NO_SUCH_FILE"

    play(scene())


def test_stopping_regards_live_runs(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            for _ in range(3):
                await submit(client)
            (key,) = await yard.begin(1)
            (other,) = await yard.begin(2)
            answer = await client.post("/admin/shutdown", json={"runs": "refuse"})
            assert (answer.status_code, code(answer)) == (409, "RUNS_ARE_LIVE")
            assert answer.json()["error"]["details"]["runs"] == [3, 1, 2]
            assert not yard.stopped.is_set()
            stop = asyncio.create_task(client.post("/admin/shutdown", json={"runs": "cancel"}, timeout=30))
            while (await client.get("/runs/2")).json()["run"]["status"] != "STOPPING":
                await asyncio.sleep(0.01)
            assert not yard.stopped.is_set()
            for each in (key, other):
                await yard.finish(each, 143)
            assert (await asyncio.wait_for(stop, 5)).json()["cancelled"] == [3, 1, 2]
            assert yard.stopped.is_set()

    play(scene())


def test_stopping_may_keep_runs(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            answer = await client.post("/admin/shutdown", json={"runs": "keep"})
            assert answer.json()["kept"] == [1]
            assert yard.stopped.is_set()
            assert (await client.get("/runs/1")).json()["run"]["outcome"] is None

    play(scene())


def test_housekeeping(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            name, data = archive(a="1")
            await client.put(f"/code/{name}", content=data)
            body = {"workload": workload(), "source_yaml": "a: 1\n"}
            await client.post("/runs", json=body)
            (key,) = await yard.begin(1)
            yard.write(key, "hello\n")
            await yard.finish(key)
            old = [*(yard.home / "server/sources").glob("*.yaml")]
            (yard.home / "server/sources/0.yaml").write_text("b: 2\n")
            for path in (*old, yard.home / "server/sources/0.yaml"):
                os.utime(path, (1, 1))
            found = (await client.post("/admin/gc", json={"dry_run": True})).json()
            assert (found["dry_run"], found["removals"]) == (True, [])
            yard.context.retention = RetentionPolicy(runs=Keep(age_ms=-1), code=Keep(cap_bytes=0))
            found = (await client.post("/admin/gc", json={"dry_run": True})).json()
            assert {each["kind"] for each in found["removals"]} == {"runs", "code"}
            assert (await client.get("/runs/1")).status_code == 200
            found = (await client.post("/admin/gc", json={})).json()
            assert found["failed"] == []
            assert found["sources_removed"] == 2
            assert (await client.get("/runs/1")).status_code == 404
            assert (await client.head(f"/code/{name}")).status_code == 404

    play(scene())


def test_verifying(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            await submit(client)
            (key,) = await yard.begin(1)
            await yard.finish(key)
            found = (await client.post("/admin/verify", json={})).json()
            assert (found["ok"], found["differences"], found["runs"]) == (True, [], 2)
            assert found["memory_compared"] is True

    play(scene())


def test_metrics_without_tracking_are_empty(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            assert (await client.get("/runs/1/metrics")).json() == {"metrics": {}, "attempt": None}
            assert code(await client.post("/runs/1/page")) == "NO_PAGE"

    play(scene())
