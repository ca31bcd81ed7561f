"""Bad input through the real command line: every problem at once, its place, the exit code, and nothing started."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def runs(yard: Yard) -> int:
    return len(yard.data("list", "--state", "all")["runs"])


def test_all_problems_of_a_file_are_told_at_once(yard: Yard) -> None:
    path = yard.home / "bad.yaml"
    path.write_text(
        "experiment_name: 5\n"
        "comand: ls\n"
        "compute: {accelerator_type: GPU_8xH100, num_accelerators: 12, memory: lots}\n"
        "timeout_minutes: soon\n"
    )
    before = runs(yard)
    done = yard.call("-o", "json", "run", str(path))
    assert done.returncode == 2
    problems = {each["path"]: each for each in json.loads(done.stdout)["error"]["details"]["problems"]}
    assert set(problems) == {
        "experiment_name",
        "comand",
        "compute.num_accelerators",
        "compute.memory",
        "timeout_minutes",
    }
    assert problems["comand"]["near_miss"] == "command"
    assert (problems["comand"]["line"], problems["comand"]["column"]) == (2, 1)
    assert "8 or 16" in problems["compute.num_accelerators"]["message"]
    assert problems["timeout_minutes"]["code"] == "WRONG_TYPE"
    done = yard.call("run", str(path))
    assert done.returncode == 2
    assert all(f"bad.yaml:{line}:" in done.stderr for line in (1, 2, 3, 4))
    assert runs(yard) == before


def test_malformed_yaml_is_placed(yard: Yard) -> None:
    path = yard.home / "malformed.yaml"
    path.write_text("experiment_name: [x\ncommand: ls\n")
    done = yard.call("run", str(path))
    assert done.returncode == 2
    assert "malformed.yaml:2:8" in done.stderr


def test_an_accelerator_of_no_pool_is_refused_with_what_is_there(yard: Yard) -> None:
    done = yard.call("-o", "json", "run", yard.file("ls", accelerator="GPU_1xB300"))
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "NO_SUCH_ACCELERATOR"
    assert "GPU_8xH100" in error["message"]
    assert "compute.accelerator_type=" in error["fix"]["command"]


def test_a_machine_without_gpus_names_the_command_that_would_run_it(make_yard: Callable[..., Yard]) -> None:
    plain = make_yard()
    done = plain.call("-o", "json", "run", plain.file("ls", accelerator="GPU_8xH100"))
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "NO_SUCH_ACCELERATOR"
    assert error["fix"]["command"] == "airyard down && airyard up --simulate GPU_8xH100=1"
    plain.ok("down")
    plain.ok("up", "--simulate", "GPU_8xH100=1")
    assert plain.data("run", plain.file("ls", accelerator="GPU_8xH100"))["run_id"] == 1


def test_a_missing_code_folder_and_a_missing_file(yard: Yard) -> None:
    source = {"type": "snapshot", "snapshot": {"root_path": "./nowhere"}}
    done = yard.call("run", yard.file("ls", code_source=source))
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr
    done = yard.call("run", "no-such-file.yaml")
    assert done.returncode == 2
    assert "no-such-file.yaml" in done.stderr


def test_a_file_that_looks_like_a_secret_stops_the_upload(yard: Yard) -> None:
    folder = yard.home / "code-with-secret"
    folder.mkdir()
    (folder / "train.py").write_text("print('hi')\n")
    (folder / ".env").write_text("TOKEN=1\n")
    path = yard.file("ls -a", code_source={"type": "snapshot", "snapshot": {"root_path": str(folder)}})
    done = yard.call("run", path)
    assert done.returncode == 2
    assert ".env" in done.stderr
    assert not list((yard.home / "server" / "blobs").rglob("*.tar.gz"))
    done = yard.call("run", path, "--allow-secret-files", "--watch")
    assert done.returncode == 0, done.stderr
    assert ".env" in done.stdout


def test_a_reference_to_nothing_is_not_found(yard: Yard) -> None:
    for verb in ("get", "logs", "cancel", "explain", "pull", "resume", "rerun"):
        done = yard.call(verb, "987654")
        assert done.returncode == 3, (verb, done.stderr)
        assert "987654" in done.stderr
    assert yard.call("rm", "--yes", "987654").returncode == 3
    done = yard.call("run", yard.file("ls", secrets={"TOKEN": "nobody/stored"}))
    assert done.returncode == 2
    assert "nobody/stored" in done.stderr


def test_a_wrong_token_is_denied_without_being_sent(yard: Yard) -> None:
    url = json.loads((yard.home / "server" / "endpoint.json").read_text())["url"]
    done = yard.call("list", AIRYARD_HOST=url, AIRYARD_TOKEN="ayt_" + "x" * 43)
    assert done.returncode == 4
    assert "Nothing was sent" in done.stderr


def test_one_idempotency_key_used_twice_at_once_makes_one_run(yard: Yard) -> None:
    path = yard.file("echo once", name="once")
    answers: list[dict[str, object]] = []

    def submit() -> None:
        answers.append(yard.data("run", path, "--idempotency-key", "the-key"))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer["run_id"] for answer in answers}) == 1
    assert sorted(bool(answer["existing"]) for answer in answers) == [False, True, True, True]
    done = yard.call(
        "-o", "json", "run", yard.file("echo twice", name="once"), "--idempotency-key", "the-key"
    )
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "IDEMPOTENCY_CONFLICT"
    assert error["details"]["field"] == "command"


def test_a_dry_run_starts_nothing(yard: Yard, tmp_path: Path) -> None:
    before = runs(yard)
    plan = yard.data("run", yard.file("ls", accelerator="GPU_8xH100", nodes=2), "--dry-run")["dry_run"]
    assert plan
    assert runs(yard) == before
