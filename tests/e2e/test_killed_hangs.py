"""kill -9 of a server in the middle of the verdict on a gang that hangs: it is told once, and acted upon once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.fatal_instants import Fatal, build, postgres_of
from e2e.yard import Yard, wait_for
from webhook_receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GANG = Path(__file__).with_name("gang_of_steps.py")
HANG = {"timeout_seconds": 5}
LOOKING = "airyard.node.looking"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


@pytest.fixture(scope="module")
def fatal(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    environment_cache: Path,
    receiver: Receiver,
) -> Iterator[Fatal]:
    """One yard for all of a kind of journal."""
    folder = tmp_path_factory.mktemp("fatal")
    receiver.received.clear()  # the yard before has the same numbers for its runs
    yard = Yard(folder / "home", environment_cache, simulate="GPU_1xA10=2")
    (yard.home / "config.toml").write_text('[notify]\nallow_hosts = ["127.0.0.1"]\n')
    one = Fatal(yard, build(folder), postgres_of(request))
    yard.up()
    yield one
    yard.close()


def submit(fatal: Fatal, receiver: Receiver, what: str, **fields: Any) -> int:
    rule = {"on": ["stalled", "failed", "done"], "to": receiver.url}
    marks = fatal.yard.home / "marks"
    return fatal.yard.submit(
        f"echo $AIRYARD_RUN_ID.$AIRYARD_ATTEMPT >> {marks}; python {GANG} {what}", notify=[rule], **fields
    )


def told(receiver: Receiver, run_id: int) -> list[str]:
    """Return the kinds of messages that came about a run."""
    documents = [one.document for one in receiver.received]
    return [one["kind"] for one in documents if one["run"] and one["run"]["run_id"] == run_id]


def die_while_looking(fatal: Fatal) -> None:
    """Kill the server while a child of the runner takes the stacks of the ranks."""
    pid = fatal.yard.server_pid()
    wait_for(
        lambda: [line for line in fatal.yard.processes().values() if LOOKING in line],
        60,
        "a look at the ranks",
    )
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pid not in fatal.yard.processes())


def die(fatal: Fatal, run_id: int, instant: str) -> None:
    """Have the server die at an instant, or while a look is under way."""
    if instant == LOOKING:
        die_while_looking(fatal)
        return
    pid = fatal.yard.server_pid()
    fatal.arm(instant.format(run=f'{{"run_id":{run_id}'))
    fatal.await_death(pid)


INSTANTS = [LOOKING, "write 1 AttemptStalled{run}", "commit 1 AttemptStalled{run}"]


@pytest.mark.parametrize(
    ("fatal", "instant"), [("sqlite", instant) for instant in INSTANTS], indirect=["fatal"], scope="module"
)
def test_a_stall_is_told_once_whenever_the_server_dies(
    fatal: Fatal, receiver: Receiver, instant: str
) -> None:
    run_id = submit(fatal, receiver, "hang", hang=HANG)
    die(fatal, run_id, instant)
    before = len(fatal.of(run_id, "AttemptStalled"))
    assert before == (1 if instant.startswith("commit") else 0)
    fatal.yard.up()
    fatal.yard.until(run_id, lambda found: found["attempts"][0]["stall"], timeout=120)
    # The new server hears of the stall, too, looks at the ranks, and comes to the same verdict.
    wait_for(
        lambda: "stuck_in_the_loader" in str(fatal.yard.data("explain", str(run_id))["progress"]),
        60,
        "what the new server knows",
    )
    time.sleep(6)
    (stall,) = fatal.of(run_id, "AttemptStalled")
    assert (stall["attempt"], stall["stall"]["ranks"], stall["stall"]["case"]) == (0, [2], "COMPUTING")
    assert fatal.of(run_id, "AttemptMovedOn") == []
    assert told(receiver, run_id) == ["stalled"]
    fatal.yard.ok("cancel", str(run_id))
    fatal.yard.ended(run_id)
    fatal.yard.ok("admin", "verify")


RESTARTS = [
    *INSTANTS,
    "commit 1 StopOrdered{run}",
    "write 1 AttemptEnded{run}",
    "commit 1 AttemptEnded{run}",
    'write 1 AttemptPlaced{run},"attempt":{run},"number":1,',
]

PLACES = [
    *(("sqlite", instant) for instant in RESTARTS),
    ("postgres", "sent 1 AttemptStalled{run}"),
]


@pytest.mark.parametrize(("fatal", "instant"), PLACES, indirect=["fatal"], scope="module")
def test_a_gang_that_hangs_is_started_again_once_whenever_the_server_dies(
    fatal: Fatal, receiver: Receiver, instant: str
) -> None:
    run_id = submit(fatal, receiver, "once", hang={**HANG, "action": "restart"}, max_retries=1)
    die(fatal, run_id, instant)
    fatal.yard.up()
    run = fatal.yard.ended(run_id, timeout=120)
    first, second = run["attempts"]
    assert (first["cause"], first["stop"]["reason"], first["stall"]["ranks"]) == ("USER_CODE", "STALLED", [2])
    assert (second["outcome"], run["outcome"], run["retries_spent"]) == ("SUCCEEDED", "SUCCEEDED", 1)
    kinds = [one.kind for one in fatal.journal() if one.data.get("run_id") == run_id]
    once = ("AttemptStalled", "StopOrdered", "RunQueuedAgain", "RunEnded")
    assert [kinds.count(kind) for kind in once] == [1, 1, 1, 1]
    assert (kinds.count("AttemptPlaced"), kinds.count("AttemptMovedOn")) == (2, 0)
    marks = (fatal.yard.home / "marks").read_text().split()
    assert [mark for mark in marks if mark.startswith(f"{run_id}.")] == [f"{run_id}.0", f"{run_id}.1"]
    wait_for(lambda: len(told(receiver, run_id)) >= 2, what="the messages")
    assert told(receiver, run_id) == ["stalled", "done"]
    fatal.yard.ok("admin", "verify")
