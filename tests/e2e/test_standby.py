"""Two servers over one PostgreSQL: the leader is killed, or hangs and comes back, under live runs and submits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.core.errors import AiryardError
from e2e.yard import wait_for
from postgres_server import PostgresServer
from standby_yard import StandbyYard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LINES = 900
EXIT_REPLACED = 8


@pytest.fixture
def yard(
    tmp_path_factory: pytest.TempPathFactory, environment_cache: Path, postgres: PostgresServer
) -> Iterator[StandbyYard]:
    """A leader and a standby."""
    made = StandbyYard(tmp_path_factory.mktemp("standby"), postgres.make_database(), environment_cache)
    made.start_both()
    yield made
    made.close()


def test_a_killed_leader_is_followed_and_nothing_is_lost_or_doubled(yard: StandbyYard) -> None:
    with yard.client() as client:
        file = yard.workload(f"for i in $(seq 1 {LINES}); do echo line $i; sleep 0.01; done")
        run_id = client.submit_file(file)["run_id"]
        wait_for(lambda: client.get(run_id)["status"] == "RUNNING", what="the run")
        followed: list[str] = []
        reader = threading.Thread(
            target=lambda: followed.extend(
                event["line"] for event in yard.client().stream(run_id) if event["type"] == "LOG"
            )
        )
        reader.start()
        before = client.status()["journal"]["epoch"]
        yard.signal("a", signal.SIGKILL)
        burst = [yard.workload(f"echo {number}") for number in range(4)]
        answers: list[tuple[int, str]] = []

        def submit(path: str) -> None:
            done = yard.cli("-o", "json", "run", path)
            answers.append((done.returncode, done.stdout + done.stderr))

        threads = [threading.Thread(target=submit, args=(path,)) for path in burst]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [code for code, _ in answers] == [0] * len(burst), answers
        run = client.wait([run_id], timeout_s=60)[0]
        assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
        reader.join(timeout=30)
        wanted = [f"line {number}" for number in range(1, LINES + 1)]
        assert [line for line in followed if line.startswith("line ")] == wanted
        stored = [event["line"] for event in client.logs(run_id) if event["type"] == "LOG"]
        assert [line for line in stored if line.startswith("line ")] == wanted
        wait_for(lambda: client.get(run_id)["logs_complete"] is True, what="the end of the log")
        runs = client.list(limit=None)
        assert len(runs) == 1 + len(burst)
        assert len({run["run_id"] for run in runs}) == len(runs)
        assert client.status()["journal"]["epoch"] == before + 1
        assert client.verify()["ok"] is True


def test_a_leader_that_hangs_and_comes_back_is_refused_and_ends_itself(yard: StandbyYard) -> None:
    with yard.client() as client:
        run_id = client.submit_file(yard.workload("sleep 8; echo through"))["run_id"]
        wait_for(lambda: client.get(run_id)["status"] == "RUNNING", what="the run")
        yard.signal("a", signal.SIGSTOP)
        key = "after-the-stop"
        with yard.client() as another:
            late = another.submit_file(yard.workload("echo late"), idempotency_key=key)
        yard.until_logged("b", "leading")
        yard.signal("a", signal.SIGCONT)
        assert yard.exit_code("a") == EXIT_REPLACED
        assert '"event": "replaced_as_leader"' in yard.log("a")
        ends = client.wait([run_id, late["run_id"]], timeout_s=60)
        assert [(run["outcome"], len(run["attempts"])) for run in ends] == [("SUCCEEDED", 1)] * 2
        assert client.verify()["ok"] is True
        # Started again, it waits; asked directly, it says who leads.
        yard.start("a")
        yard.until_logged("a", "standing_by")
        with pytest.raises(AiryardError) as refused:
            _ask_alone(yard, "a")
        assert refused.value.code == "NOT_LEADER"
        assert refused.value.details["leader"] == yard.url("b")
        # A clean stop frees the seat at once.
        yard.signal("b", signal.SIGTERM)
        assert client.submit_file(yard.workload("echo back"))["run_id"] > late["run_id"]
        assert yard.exit_code("b") == 0


def _ask_alone(yard: StandbyYard, name: str) -> None:
    from airyard.sdk import requests
    from airyard.sdk.transport import HttpTransport

    token = (yard.shared / "server" / "token").read_text().strip()
    HttpTransport(yard.url(name), token).send(requests.status())
