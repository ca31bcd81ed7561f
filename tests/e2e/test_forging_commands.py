"""User code that tries to speak in its runner's name: it ends nothing, closes no node, and tracks as ever."""

from __future__ import annotations

import hashlib
import hmac
import json
import shlex
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from airyard.core.versions import RUNNER
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

FORGING = """
import json, os, pathlib, re, urllib.error, urllib.request

def ask(method, url, token, body=None):
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return f"{error.code} {json.load(error).get('error_code')}"

texts = [json.dumps(dict(os.environ))]
pid = os.getppid()
while pid > 1:
    texts += [pathlib.Path(f"/proc/{pid}/{name}").read_text(errors="replace") for name in ("environ", "cmdline")]
    pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
attempt = pathlib.Path(os.environ["AIRYARD_STOP_FILE"]).parents[1]
texts += [path.read_text(errors="replace") for path in attempt.rglob("*") if path.is_file()]
tokens = sorted(set(re.findall(r"\\bay[ac]_[0-9.]+[0-9a-f]{64}", " ".join(texts))))

mlflow, run_id = os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_RUN_ID"]
runner = mlflow.removesuffix("/mlflow") + "/api/v1/runner"
end = dict(number=999, kind="EXITED", at_ns=1, code=1, signal=None, started=True, cause="NODE", message="forged",
           fault="epilog", fault_message="forged by the command")
for token in tokens:
    print(token[:4], "in", attempt.name)
    for epoch in range(1, 4):
        batch = dict(protocol=PROTOCOL, epoch=epoch, sent_ns=1, reports=[end])
        print("POST reports", ask("POST", runner + "/reports", token, batch))
    print("GET orders", ask("GET", runner + "/orders?wait_s=0", token))
    print("POST logs", ask("POST", runner + "/logs", token, {}))
    print("POST looks", ask("POST", runner + "/looks", token, {"number": 1, "ranks": []}))
    print("GET code", ask("GET", runner + "/code/" + "0" * 64, token))
    print("GET nodes", ask("GET", runner.replace("/runner", "/nodes"), token))
    metric = dict(run_id=run_id, key="loss", value=0.5, timestamp=1, step=3)
    print("log-metric", ask("POST", mlflow + "/api/2.0/mlflow/runs/log-metric", token, metric))
""".replace("PROTOCOL", str(RUNNER.newest))
POLICY = 'pools: {cpu: {accelerator: CPU, prolog: {command: "true"}, epilog: {command: "true"}}}\n'


def call(yard: Yard, method: str, path: str, token: str, body: Any = None) -> int:
    url = json.loads((yard.home / "server" / "endpoint.json").read_text())["url"]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, data, headers, method=method)
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_command_neither_ends_itself_nor_closes_its_node(make_yard: Callable[..., Yard]) -> None:
    yard = make_yard(tracking="embedded")
    wait_for(lambda: yard.data("status")["mlflow"]["kind"] == "up", 90, "MLflow")
    (yard.home / "yard.yaml").write_text(POLICY)
    yard.ok("apply", "-f", str(yard.home / "yard.yaml"))
    (yard.home / "forging.py").write_text(FORGING)
    go = yard.home / "go"
    run_id = yard.submit(
        f"{shlex.quote(sys.executable)} {yard.home}/forging.py; while [ ! -e {go} ]; do sleep 0.1; done"
    )
    lines = wait_for(
        lambda: (said := yard.ok("logs", str(run_id), "--no-follow").splitlines()) and said[-1:] == ["log-metric 200"]
        and said, 60, "what the command was told"
    )  # fmt: skip
    refused = "403 NOT_A_RUNNER"
    assert not [line for line in lines if line.startswith("aya_")], "the runner's token"
    assert lines[-10:] == [
        f"ayc_ in {run_id}.0.0", *3 * [f"POST reports {refused}"], f"GET orders {refused}", f"POST logs {refused}",
        f"POST looks {refused}", f"GET code {refused}", "GET nodes 403 NOT_A_PERSON", "log-metric 200",
    ]  # fmt: skip
    run = yard.get(run_id)
    assert (run["status"], run["attempt"]) == ("RUNNING", 0)
    assert not cordoned(yard)
    metrics = yard.data("metrics", str(run_id))
    assert "loss" in json.dumps(metrics)

    # What a runner of the release before hands to its command: it tracks, too.
    key = f"{run_id}.0.0"
    secret = (yard.home / "server" / "attempt.key").read_bytes()
    runners = f"aya_{key}.{hmac.new(secret, key.encode(), hashlib.sha256).hexdigest()}"
    tracked = run["attempts"][0]["tracking"]["run_id"]
    path = f"/mlflow/api/2.0/mlflow/runs/get?run_id={tracked}"
    assert call(yard, "GET", path, runners) == 200

    go.touch()
    run = yard.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1), run
    assert not cordoned(yard)
    audit = yard.ok("admin", "audit")
    assert audit.count("/api/v1/runner/reports") == 3


def cordoned(yard: Yard) -> list[str]:
    return [node["name"] for node in yard.data("nodes")["nodes"] if node["cordon"]]
