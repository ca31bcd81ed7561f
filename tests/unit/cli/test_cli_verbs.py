"""Verbs against scripted answers: output, exit codes, usage errors."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from airyard.cli.main import VERBS, root, wants_json
from airyard.core.errors import Conflict, NotFound
from airyard.sdk.transport import ConnectionLost
from client_fakes import failed_document, run_document


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_loads_and_takes_the_common_options(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"-o", "--host", "--profile", "--home", "--color", "--debug"} <= options


def test_list_aligns_and_json_carries_the_documents(airyard: Any) -> None:
    answers = {
        "GET /runs": [{"runs": [run_document(112, name="big"), failed_document(9)], "next_before": None}]
    }
    code, out, _ = airyard("list", answers=answers)
    assert code == 0
    assert out.splitlines()[1].startswith("112  big     SUCCEEDED  2 × GPU_1xA10  ada")
    assert out.splitlines()[2].startswith("  9  digits  FAILED")
    code, out, _ = airyard("-o", "json", "list", answers=answers)
    document = json.loads(out)
    assert (document["v"], [run["run_id"] for run in document["data"]["runs"]]) == (1, [112, 9])


def test_list_takes_a_status_in_any_case(airyard: Any) -> None:
    answers = {"GET /runs": [{"runs": [], "next_before": None}]}
    code, _, err = airyard("list", "--state", "TIMED_OUT", answers=answers)
    assert (code, err) == (0, "No runs (timed_out).\n")
    assert "state=timed_out" in airyard.transport.asked[-1].path
    assert airyard("list", "--state", "lost", answers=answers)[0] == 2


def test_get_shows_the_failure_and_exits_as_asked(airyard: Any) -> None:
    attempts = [
        {
            "attempt": 0,
            "state": "ENDED",
            "outcome": "FAILED",
            "cause": "USER_CODE",
            "placed_at": "2026-01-31T12:00:00Z",
            "started_at": "2026-01-31T12:00:03Z",
            "ended_at": "2026-01-31T12:01:03Z",
            "checkpoint": {"step": 40, "path": "p", "at": "2026-01-31T12:00:50Z"},
            "members": [
                {"member": 1, "node": "host-b", "devices": [0], "phase": "ENDED", "exit_code": 7, "signal": None,
                 "logs": {"complete": True}},
            ],
        }
    ]  # fmt: skip
    answers = {"GET /runs/12": [{"run": failed_document(attempts=attempts)}]}
    code, out, _ = airyard("get", "12", answers=answers)
    assert code == 0
    assert "failure  USER_CODE on node 1 (host-b): the command ended with exit code 7" in out
    assert "next     airyard logs 12 --node 1 --tail 50" in out
    assert "step 40" in out
    assert airyard("get", "12", "--exit-status", answers=answers)[0] == 1
    assert airyard("get", "12", "--exit-status", "--propagate", answers=answers)[0] == 7


def test_errors_are_an_envelope_or_two_lines(airyard: Any) -> None:
    answers = {"GET /runs/99": [NotFound("There is no run 99.", fix="`airyard list` shows the runs.")]}
    code, out, err = airyard("get", "99", answers=answers)
    assert (code, out) == (3, "")
    assert err.splitlines() == ["error: There is no run 99.", "next: `airyard list` shows the runs."]
    code, out, err = airyard("get", "99", "-o", "json", answers=answers)
    error = json.loads(out)["error"]
    assert (code, err, error["code"], error["retryable"]) == (3, "", "NOT_FOUND", False)
    assert error["fix"] == {"text": "`airyard list` shows the runs."}


def test_usage_errors_exit_2_also_as_json(airyard: Any) -> None:
    code, out, err = airyard("get")
    assert (code, out) == (2, "")
    assert "Missing argument 'ID'" in err
    code, out, _ = airyard("lst", "-o", "json")
    assert code == 2
    assert "Did you mean `airyard list`?" in json.loads(out)["error"]["message"]
    assert airyard("list", "--limit", "none")[0] == 2


def test_no_verb_at_all_is_the_help(airyard: Any) -> None:
    code, out, err = airyard()
    assert (code, err) == (0, "")
    assert "Usage: airyard" in out
    assert airyard("secrets")[0] == 0


def test_completion_scripts_name_the_command(airyard: Any) -> None:
    for shell in ("bash", "zsh", "fish"):
        code, out, _ = airyard("completion", shell)
        assert (code, "_AIRYARD_COMPLETE" in out) == (0, True)


def test_doctor_reports_without_a_server_and_exits_by_what_failed(airyard: Any) -> None:
    lost = ConnectionLost("The server cannot be reached.", sent=False)
    code, out, _ = airyard("doctor", "-o", "json", answers={"GET /status": [lost]})
    document = json.loads(out)["data"]
    levels = {check["name"]: check["level"] for check in document["checks"]}
    assert (code, document["ok"], levels["server"], levels["python"]) == (2, False, "fail", "ok")
    cage = {"kind": "environment-cookie", "limits": False, "reason": "no writable cgroup"}
    mlflow = {"kind": "down", "detail": "connection refused", "uri": "http://x"}
    status = {"version": "1", "mlflow": mlflow, "containment": cage}
    nodes = {"nodes": [{"name": "h-cpu-0", "accelerator": "CPU", "simulated": False, "devices": []}]}
    code, out, _ = airyard("doctor", answers={"GET /status": [status], "GET /nodes": [nodes]})
    assert code == 0
    assert "warn  mlflow" in out
    assert "none; 1 CPU slot" in out
    assert "no memory or CPU limits · no writable cgroup" in out


def test_status_reads_as_a_page(airyard: Any) -> None:
    status = {
        "version": "0.1.0", "pid": 7, "started_at": "2026-01-31T12:00:00Z", "url": "http://127.0.0.1:1", "home": "/h",
        "ports": {"http": 1}, "engine": "local", "simulated": {"GPU_1xA10": 2}, "disk": {"code": 2048},
        "counts": {"queued": 1, "active": 0}, "mlflow": {"kind": "up", "detail": "", "uri": "http://m"},
        "containment": {}, "journal": {"seq": 5, "epoch": 1, "bytes": 10},
    }  # fmt: skip
    code, out, _ = airyard("status", answers={"GET /status": [status]})
    assert code == 0
    assert out.splitlines()[0] == "server       airyard 0.1.0, pid 7"
    assert "simulated    GPU_1xA10 2" in out
    assert "disk         code 2.0 KiB" in out


def test_an_unreachable_server_is_5_and_a_bug_is_7(airyard: Any) -> None:
    lost = ConnectionLost("The server cannot be reached.", sent=False)
    code, out, _ = airyard("nodes", "-o", "json", answers={"GET /nodes": [lost]})
    assert (code, json.loads(out)["error"]["retryable"]) == (5, True)
    code, _, err = airyard("nodes", answers={"GET /nodes": [{}]})
    assert code == 7
    assert "Airyard has a bug: KeyError" in err


def test_wait_exits_as_the_first_that_failed_and_8_when_the_time_is_over(airyard: Any) -> None:
    runs = [run_document(1), failed_document(2)]
    lookups = {"GET /runs/1": [{"run": runs[0]}], "GET /runs/2": [{"run": runs[1]}]}
    code, out, _ = airyard("wait", "1", "2", answers={**lookups, "GET /wait": [{"done": True, "runs": runs}]})
    assert code == 1
    assert out.startswith("run 1 SUCCEEDED")
    live = [run_document(1, state="ACTIVE"), runs[1]]
    answers = {**lookups, "GET /wait": [{"done": False, "runs": live}]}
    assert airyard("wait", "1", "2", "--timeout", "0", answers=answers)[0] == 8


def test_wait_any_exits_as_the_one_that_ended(airyard: Any) -> None:
    runs = [run_document(1, state="ACTIVE"), failed_document(2, exit_code=9)]
    lookups = {"GET /runs/1": [{"run": runs[0]}], "GET /runs/2": [{"run": runs[1]}]}
    answers = {**lookups, "GET /wait": [{"done": True, "runs": runs}]}
    assert airyard("wait", "1", "2", "--any", answers=answers)[0] == 9


def test_cancel_reports_each_and_fails_for_what_failed(airyard: Any) -> None:
    answers = {
        "POST /runs/1/cancel": [{"run_id": 1, "already_ended": False}],
        "POST /runs/2/cancel": [{"run_id": 2, "already_ended": True}],
        "POST /runs/3/cancel": [NotFound("There is no run 3.")],
    }
    code, out, _ = airyard("cancel", "1", "2", answers=answers)
    assert (code, out.splitlines()) == (0, ["run 1 is asked to stop", "run 2 has already ended"])
    code, out, _ = airyard("cancel", "1", "3", "-o", "json", answers=answers)
    assert (code, json.loads(out)["data"]["failed"][0]["code"]) == (3, "NOT_FOUND")
    assert airyard("cancel")[0] == 2


def test_metrics_side_by_side_and_the_best(airyard: Any) -> None:
    answers = {
        "GET /runs/1/metrics": [{"metrics": {"acc": {"value": 0.9, "step": 3, "time_ms": 1}}}],
        "GET /runs/2/metrics": [{"metrics": {"acc": {"value": float("nan"), "step": 3, "time_ms": 1}}}],
    }
    code, out, _ = airyard("metrics", "1", "2", "--best", "max:acc", answers=answers)
    assert (code, out.splitlines()[-1]) == (0, "best: run 1 with acc 0.9")
    assert out.splitlines()[0].split() == ["METRIC", "RUN", "1", "RUN", "2"]
    assert airyard("metrics", "1", "--best", "acc", answers=answers)[0] == 2
    assert airyard("metrics", "1", "--best", "max:f1", answers=answers)[0] == 3


def test_metrics_of_a_tag_are_those_of_all_its_runs_a_row_each_when_many(airyard: Any) -> None:
    runs = [run_document(number) for number in range(8, 0, -1)]
    answers: dict[str, list[Any]] = {"GET /runs": [{"runs": runs, "next_before": None}]}
    for number in range(1, 9):
        values = {"acc": {"value": number / 10, "step": 1, "time_ms": 1}}
        answers[f"GET /runs/{number}/metrics"] = [{"metrics": values}]
    code, out, _ = airyard("metrics", "tag:sweep=a", "8", "--best", "max:acc", answers=answers)
    lines = [line.split() for line in out.splitlines()]
    assert (code, lines[0], lines[1], len(lines)) == (0, ["RUN", "acc"], ["1", "0.1"], 10)
    assert out.splitlines()[-1] == "best: run 8 with acc 0.8"
    none = {"GET /runs": [{"runs": [], "next_before": None}]}
    assert airyard("metrics", "tag:sweep=b", answers=none)[0] == 3


def test_wait_takes_all_runs_of_a_tag(airyard: Any) -> None:
    runs = [run_document(3), failed_document(2)]
    answers = {
        "GET /runs": [{"runs": runs, "next_before": None}],
        "GET /wait": [{"done": True, "runs": runs}],
    }
    code, out, _ = airyard("wait", "tag:sweep=a", answers=answers)
    assert "ids=2%2C3" in airyard.transport.asked[-1].path
    assert (code, [line.split()[1] for line in out.splitlines()]) == (1, ["2", "3"])


def test_logs_prints_all_nodes_and_downloads_octets(airyard: Any, tmp_path: Path) -> None:
    members = [{"member": 0, "logs": {"complete": True}}, {"member": 1, "logs": None}]
    run = run_document(attempts=[{"attempt": 0, "members": members}])
    line = {"type": "LOG", "attempt": 0, "node": 1, "stream": "stdout", "time_ns": 1, "line": "hi"}
    end = {"type": "END", "attempt": 0, "complete": False, "members": [{"node": 1, "complete": False}]}
    answers = {"GET /runs/12": [{"run": run}], "GET /runs/12/logs": [[line, end]],
               "GET /runs/12/logs/raw": [[b"a\xff\n"], [b"b"]]}  # fmt: skip
    code, out, err = airyard("logs", "12", "--grep", "h.", "--tail", "3", answers=answers)
    assert (code, out) == (0, "[n1] hi\n")
    assert "incomplete: node 1" in err
    code, out, _ = airyard("logs", "12", "--download-to", str(tmp_path / "d"), answers=answers)
    assert code == 0
    assert (tmp_path / "d" / "logs" / "node_0.log").read_bytes() == b"a\xff\n"
    assert out.splitlines()[1].endswith("incomplete")
    assert airyard("logs", "12", "--download-to", "d", "--tail", "1", answers=answers)[0] == 2
    assert airyard("logs", "12", "--since", "soon", answers=answers)[0] == 2


def test_run_submits_a_file_with_a_key_and_says_what_is_sent(airyard: Any, tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text("experiment_name: t\ncommand: echo hi\ncompute: {accelerator_type: CPU}\n")
    answers = {"POST /runs": [{"run": run_document(5), "existing": False, "warnings": []}]}
    arguments = ["run", "-f", str(file), "--name", "n1", "--tag", "a=b", "--override", "max_retries=0"]
    code, out, err = airyard(*arguments, answers=answers)
    assert (code, out) == (0, "run 5 submitted: digits on 2 × GPU_1xA10\n")
    assert "no code is sent" in err
    body = airyard.transport.asked[-1].body
    assert len(body["idempotency_key"]) == 32
    workload = body["workload"]
    assert (workload["name"], workload["tags"], workload["max_retries"]) == ("n1", {"a": "b"}, 0)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"version": "6", "dependencies": 2, "cached": True}, "cached"),
        ({"version": "6", "dependencies": 1, "cached": False}, "will be built (1 dependency)"),
        ({"version": "6", "dependencies": 0, "cached": None}, "not known, the node's agent did not answer"),
    ],
)
def test_a_dry_run_says_whether_the_environment_is_built(
    airyard: Any, environment: dict[str, Any], told: str
) -> None:
    answers = {"POST /runs": [{"dry_run": {"would_start_now": True, "environment": environment}}]}
    code, out, err = airyard("run", "--cpu", "--dry-run", "--", "true", answers=answers)
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("environment")]
    assert (code, told in line) == (0, True), out
    code, out, _ = airyard("run", "--cpu", "--dry-run", "-o", "json", "--", "true", answers=answers)
    assert json.loads(out)["data"]["dry_run"]["environment"] == environment


def test_run_packs_and_uploads_only_what_is_missing(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    file = tmp_path / "workload.yaml"
    file.write_text(
        "experiment_name: t\ncommand: python train.py\ncompute: {accelerator_type: CPU}\n"
        "code_source: {root_path: code}\n"
    )
    submitted = [{"run": run_document(5), "existing": True, "warnings": []}]

    answers = {"POST /runs": submitted, "HEAD /code/*": [NotFound("no")], "PUT /code/*": [None]}
    code, out, _ = airyard("run", str(file), answers=answers)
    assert (code, "exists already" in out) == (0, True)
    assert len(airyard.transport.uploads) == 1
    assert airyard.transport.uploads[0][:2] == b"\x1f\x8b"
    methods = [request.method for request in airyard.transport.asked]
    assert methods == ["HEAD", "PUT", "POST"]
    assert airyard.transport.asked[-1].body["workload"]["code"]["directory_name"] == "code"


def test_run_takes_a_command_after_dashes(airyard: Any) -> None:
    answers = {
        "POST /runs": [{"run": run_document(5), "existing": False, "warnings": []}],
        "GET /pools": [{"pools": [{"accelerator": "GPU_8xH100"}, {"accelerator": "GPU_1xA10"}]}],
    }
    code, _, _ = airyard(
        "run", "--gpus", "2", "--nodes", "2", "--", "python", "-c", "print('a b')", answers=answers
    )
    assert code == 0
    workload = airyard.transport.asked[-1].body["workload"]
    assert (workload["compute"]["accelerator"], workload["compute"]["nodes"]) == ("GPU_2xH100", 2)
    assert workload["command"] == """python -c 'print('"'"'a b'"'"')'"""
    code, _, err = airyard("run", "--gpus", "1", "--", "true", answers=answers)
    assert (code, "--model A10" in err) == (2, True)


def test_run_refuses_mixes_and_reports_every_problem(airyard: Any, tmp_path: Path) -> None:
    assert airyard("run", "a.yaml", "--", "true")[0] == 2
    assert airyard("run", "--gpus", "2")[0] == 2
    assert airyard("run", "--gpus", "2", "--cpu", "--", "true")[0] == 2
    assert airyard("run", "--")[0] == 2
    file = tmp_path / "bad.yaml"
    file.write_text("experiment: x\ncompute: {accelerator_type: CPU}\n")
    code, out, _ = airyard("run", str(file), "-o", "json")
    assert code == 2
    assert "experiment_name" in json.loads(out)["error"]["message"]


def test_down_lists_the_runs_that_hold_it(airyard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = airyard("down")
    assert code == 2  # the fake client has a host: `down` is about the local server
    assert "`down` stops the local server" in err


def test_secrets_never_take_a_value_as_argument(airyard: Any, tmp_path: Path, monkeypatch: Any) -> None:
    answers = {"PUT /secrets/hub/token": [None]}
    monkeypatch.setenv("HUB", "from-env")
    assert airyard("secrets", "put", "hub/token", "value", answers=answers)[0] == 2
    code, out, _ = airyard("secrets", "put", "hub/token", "--from-env", "HUB", answers=answers)
    assert (code, out) == (0, "stored hub/token\n")
    assert airyard.transport.asked[-1].body == {"value": "from-env", "unmasked": False}
    (tmp_path / "v").write_text("from-file\n")
    assert airyard("secrets", "put", "hub/token", "--from-file", str(tmp_path / "v"), answers=answers)[0] == 0
    assert airyard("secrets", "put", "hubtoken", "--from-env", "HUB", answers=answers)[0] == 2


def test_a_conflict_of_keys_is_2(airyard: Any) -> None:
    answers = {"POST /runs": [Conflict("Key k was used for another workload: compute.nodes differs.")]}
    code, _, err = airyard("run", "--cpu", "--idempotency-key", "k", "--", "true", answers=answers)
    assert (code, "compute.nodes differs" in err) == (2, True)


def test_json_is_wanted_only_before_the_dashes() -> None:
    assert wants_json(["list", "-o", "json"])
    assert wants_json(["--output=json", "list"])
    assert not wants_json(["run", "--", "-o", "json"])
    assert not wants_json(["list", "-o", "text"])


@pytest.mark.parametrize("arguments", [["list"], ["get", "1"], ["logs", "1"], ["cancel", "1"]])
def test_the_fast_verbs_import_little(arguments: list[str], tmp_path: Path) -> None:
    probe = (
        "import sys\nfrom airyard.cli.main import run\n"
        f"run({[*arguments, '--host', 'http://127.0.0.1:1']!r})\n"
        "heavy = {'pydantic', 'rich', 'yaml', 'httpx', 'asyncio', 'airyard.spec', 'airyard.server'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        env={"AIRYARD_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_nobody_to_ask_is_a_usage_error_and_no_is_no(airyard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, _, err = airyard("rm", "9")
    assert code == 2
    assert "-y" in err
    code, out, _ = airyard("rm", "9", "-o", "json")
    assert (code, "-y" in json.loads(out)["error"]["message"]) == (2, True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert airyard("rm", "9")[0] == 130


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "H100", "--", "true"], "--gpus N"),
        (["--gpus", "9", "--", "true"], "the largest has 8"),
    ],
)
def test_gpus_of_a_command_that_cannot_be_meant(airyard: Any, words: list[str], told: str) -> None:
    pools = [{"name": "big", "accelerator": "GPU_8xH100"}, {"name": "CPU", "accelerator": "CPU"}]
    code, _, err = airyard("run", *words, answers={"GET /pools": [{"pools": pools}]})
    assert code == 2
    assert told in err


def test_a_metric_that_nobody_logged_names_those_there_are(airyard: Any) -> None:
    values = {"loss": {"value": "nan", "step": 0}, "system/cpu": {"value": 1.0, "step": 0}}
    answers = {"GET /runs/7/metrics": [{"metrics": values}]}
    code, _, err = airyard("metrics", "7", "--best", "max:acc", answers=answers)
    assert code == 3
    assert "They logged loss." in err
    code, _, err = airyard("metrics", "7", "--best", "max:loss", answers=answers)
    assert code == 3
    assert "anything but NaN" in err


def test_a_reader_that_went_away_is_141() -> None:
    """A real pipe whose reading end is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "airyard.cli", "schema"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("name", ["123", "@last", "two words", "", "n" * 101])
def test_a_name_that_could_not_be_referred_to_is_refused(airyard: Any, name: str) -> None:
    code, out, _ = airyard("run", "--name", name, "-o", "json", "--cpu", "--", "true", answers={})
    assert (code, json.loads(out)["error"]["code"]) == (2, "BAD_NAME")
