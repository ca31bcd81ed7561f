"""kill -9 of a server between the exit of an attempt and what its verdict leads to: each of it is done once.

The attempt fails by what its output calls a fault of its GPU. That is worth one retry for nothing (the run has none of
its own: one that were charged would end it) and two points against its node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.fatal_instants import Fatal, build, postgres_of
from e2e.yard import Yard, wait_for
from webhook_receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

KIND, NODES = "GPU_1xA10", 24
SAYS = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
LONG_LOG_BYTES = 12 << 20
FELL_OFF = "NVRM: Xid (PCI:0000:11:00): 79, GPU has fallen off the bus."


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
    """One yard for all of a kind of journal, which has lived through all of these deaths at the end."""
    folder = tmp_path_factory.mktemp("fatal")
    receiver.received.clear()  # the yard before has the same numbers for its runs
    yard = Yard(folder / "home", environment_cache, simulate=f"{KIND}={NODES}")
    (yard.home / "config.toml").write_text(
        '[notify]\nallow_hosts = ["127.0.0.1"]\n'
        f'[[notify.fleet]]\non = ["node_cordoned"]\nto = "{receiver.url}/fleet"\n'
        '[health]\nsimulated_remedy_command = "true"\nsimulated_retest_command = "true"\n'
    )
    one = Fatal(yard, build(folder), postgres_of(request))
    yard.up()
    yield one
    yard.close()


@dataclass(slots=True)
class Case:
    """A run that fails once and then ends well, and the marks of its commands."""

    fatal: Fatal
    receiver: Receiver
    marks: Path
    run_id: int = 0

    def submit(self, *, log_bytes: int = 0) -> str:
        """Start it and have it wait; return its node."""
        go = self.marks.with_suffix(".go")
        command = (
            f"echo $AIRYARD_ATTEMPT >> {self.marks}; [ $AIRYARD_ATTEMPT = 0 ] || exit 0; "
            f"until [ -e {go} ]; do sleep 0.05; done; "
            f"echo '{SAYS}' >&2; yes 'some line of a long log' | head -c {log_bytes}; exit 1"
        )
        yard = self.fatal.yard
        rule = {"on": ["failed", "done"], "to": self.receiver.url}
        self.run_id = yard.submit(command, accelerator=KIND, notify=[rule])
        wait_for(self.marks.exists, what="the command")
        return str(yard.get(self.run_id)["attempts"][0]["members"][0]["node"])

    def fail_and_die(self, *instants: str) -> list[str]:
        """Let the command fail, and the server die at an instant; return what was journalled of the run meanwhile."""
        words = {
            "of_0": f'{{"run_id":{self.run_id},"attempt":0',
            "second": f'{{"run_id":{self.run_id},"attempt":{{"run_id":{self.run_id},"number":1,',
            "log": f"/logs/{self.run_id}/0/0.log",
        }
        begun, pid = len(self.kinds()), self.fatal.yard.server_pid()
        self.fatal.arm(*(instant.format(**words) for instant in instants))
        self.marks.with_suffix(".go").touch()
        self.fatal.await_death(pid)
        return self.kinds()[begun:]

    def kinds(self) -> list[str]:
        """Return what is journalled about the run, in order."""
        return [one.kind for one in self.fatal.journal() if one.data.get("run_id") == self.run_id]

    def ended(self) -> dict[str, Any]:
        """Wait for the run's end, and see that nothing of it was done twice."""
        run = self.fatal.yard.ended(self.run_id, timeout=120)
        kinds = self.kinds()
        assert [kinds.count(kind) for kind in ("AttemptJudged", "AttemptPlaced", "RunEnded")] == [1, 2, 1]
        assert (kinds.count("RunQueuedAgain"), kinds.count("AttemptEnded")) == (1, 2)
        assert self.marks.read_text().split() == ["0", "1"], "each attempt's command ran once"
        assert (run["outcome"], run["retries_spent"], len(run["attempts"])) == ("SUCCEEDED", 0, 2)
        wait_for(self.told, what="the message")
        assert self.told() == ["done"]
        return run

    def told(self) -> list[str]:
        """Return the kinds of messages that came about the run."""
        documents = [one.document for one in self.receiver.received]
        return [one["kind"] for one in documents if one["run"] and one["run"]["run_id"] == self.run_id]

    def points(self, node: str) -> list[tuple[str, float]]:
        """Return what speaks against a node, as each change of its health has added to it."""
        found: list[tuple[str, float]] = []
        for one in self.fatal.journal():
            if one.kind == "NodeHealthChanged" and one.data["node"] == node:
                hits = [(hit["rule"], hit["weight"]) for hit in one.data["health"].get("hits", ())]
                found += [hit for hit in hits if hit not in found]
        return found

    def states(self, node: str) -> list[str]:
        """Return the states that a node came to."""
        changes = [one.data for one in self.fatal.journal() if one.kind == "NodeHealthChanged"]
        states = [str(one["health"].get("state", "HEALTHY")) for one in changes if one["node"] == node]
        return [state for state, before in zip(states, ["HEALTHY", *states], strict=False) if state != before]


@pytest.fixture
def case(fatal: Fatal, receiver: Receiver, tmp_path: Path) -> Case:
    return Case(fatal, receiver, tmp_path / "marks")


INSTANTS = {
    "the exit is journalled": (["commit 1 MemberExited{of_0}"], "MemberExited", "AttemptJudged"),
    "the logs are closed": (["commit 1 MemberLogsClosed{of_0}"], "MemberLogsClosed", "AttemptJudged"),
    "triage begins to read": (
        ["commit 1 MemberLogsClosed{of_0}", "read 1 {log}"],
        "MemberLogsClosed",
        "AttemptJudged",
    ),
    "triage is in the middle of a long log": (
        ["commit 1 MemberLogsClosed{of_0}", "read 6 {log}"],
        "MemberLogsClosed",
        "AttemptJudged",
    ),
    "the verdict is about to be written": (
        ["write 1 AttemptJudged{of_0}"],
        "VerdictAwaited",
        "AttemptJudged",
    ),
    "the verdict is written": (["commit 1 AttemptJudged{of_0}"], "RunQueuedAgain", "AttemptPlaced"),
    "the retry is about to be placed": (["write 1 AttemptPlaced{second}"], "RunQueuedAgain", "AttemptPlaced"),
    "the retry is placed": (["commit 1 AttemptPlaced{second}"], "AttemptPlaced", "MemberPreparing"),
}
"""When the server dies; what the journal then has last of this attempt, and what it has not yet."""
UNSURE = {
    "the verdict's commit is under way": (["sent 1 AttemptJudged{of_0}"], "RunQueuedAgain", "AttemptPlaced")
}
"""PostgreSQL commits what it was asked to, though nobody is there any more to be told."""
PLACES = [
    *(("sqlite", instant) for instant in INSTANTS),
    ("postgres", "the verdict is about to be written"),
    ("postgres", "the verdict's commit is under way"),
    ("postgres", "the retry is placed"),
]


@pytest.mark.parametrize(("fatal", "instant"), PLACES, indirect=["fatal"], scope="module")
def test_a_verdict_and_its_retry_outlive_a_server_that_dies(case: Case, instant: str) -> None:
    fatal, (armed, has, lacks) = case.fatal, {**INSTANTS, **UNSURE}[instant]
    ill = case.submit(log_bytes=LONG_LOG_BYTES if "long" in instant else 0)
    left = case.fail_and_die(*armed)
    assert has in left, (instant, left)
    assert lacks not in left, (instant, left)
    fatal.yard.up()
    run = case.ended()
    first, second = run["attempts"]
    assert (first["cause"], first["judgement"]["verdict"]["rule"]) == ("DEVICE", "cuda.ecc")
    assert first["judgement"]["logs"] == 1
    assert (second["outcome"], second["members"][0]["node"] != ill) == ("SUCCEEDED", True)
    assert case.points(ill) == [("job.cuda.ecc", 2.0)]
    fatal.yard.ok("cordon", ill)  # so that the next one begins with a node against which nothing speaks
    fatal.yard.ok("admin", "verify")


@pytest.mark.parametrize("fatal", ["sqlite"], indirect=True, scope="module")
def test_servers_that_die_one_after_another_cost_the_verdict_nothing(case: Case) -> None:
    ill = case.submit()
    assert "AttemptJudged" not in case.fail_and_die("commit 1 MemberLogsClosed{of_0}")
    for _ in range(2):
        case.fatal.arm("commit 1 EpochBegan{")
        assert case.fatal.yard.call("up").returncode != 0, "it dies while it starts"
    case.fatal.yard.up()
    first = case.ended()["attempts"][0]
    assert (first["cause"], first["judgement"]["verdict"]["rule"]) == ("DEVICE", "cuda.ecc")
    assert case.points(ill) == [("job.cuda.ecc", 2.0)]
    case.fatal.yard.ok("cordon", ill)
    case.fatal.yard.ok("admin", "verify")


@pytest.mark.parametrize("fatal", ["sqlite"], indirect=True, scope="module")
def test_what_a_monitor_saw_while_no_server_was_there_confirms_the_verdict(
    case: Case, receiver: Receiver
) -> None:
    ill = case.submit()
    case.fail_and_die("commit 1 MemberLogsClosed{of_0}")
    faults = case.fatal.yard.home / "node" / "health" / "simulated-faults.jsonl"
    faults.parent.mkdir(exist_ok=True)
    with faults.open("a") as out:
        out.write(json.dumps({"node": ill, "device": 0, "kernel": FELL_OFF}) + "\n")
    case.fatal.yard.up()
    first = case.ended()["attempts"][0]
    verdict = first["judgement"]["verdict"]
    assert (first["cause"], verdict["confirmed"], verdict["blamed_node"]) == ("DEVICE", True, ill)
    wait_for(lambda: "HEALTHY" not in case.states(ill)[-1:] and case.states(ill), what="the node's remedy")
    assert case.states(ill).count("CORDONED") == 1
    assert case.points(ill) == [("xid.79", 8.0)], "what is confirmed the monitors say themselves, once"

    def cordons() -> list[str]:
        documents = [one.document for one in receiver.received]
        return [one["node"] for one in documents if one["kind"] == "node_cordoned" and one["node"] == ill]

    wait_for(cordons, what="the message")
    assert cordons() == [ill]
    case.fatal.yard.ok("admin", "verify")
