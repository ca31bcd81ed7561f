"""A run that is preempted goes on after its last acknowledged checkpoint, keeps its place and its retries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits-ddp" / "workload.yaml"

TRAINING = """
import json, os, signal, sys, time
from airyard import checkpoint

steps, listens = int(sys.argv[1]), sys.argv[2] == "listens"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = os.environ["AIRYARD_CHECKPOINT_DIR"]
newest = checkpoint.latest()
first = newest[0] + 1 if newest else 0
print(f"begin at {first} from {newest and os.path.basename(newest[1])}", flush=True)
for step in range(first, steps):
    time.sleep(0.05)
    print(f"step {step}", flush=True)
    if listens or step == 3:
        with open(os.path.join(folder, f"step-{step}"), "w") as file:
            file.write(str(step))
        wrote = checkpoint.saved(step, f"step-{step}")
        assert wrote == (os.environ["NODE_RANK"] == "0")
    if listens and checkpoint.stop_requested():
        with open(os.environ["AIRYARD_STOP_FILE"]) as file:
            reason = json.load(file)["reason"]
        print(f"{reason}: leaving after {step}, {checkpoint.seconds_left():.0f} s left", flush=True)
        sys.exit(3)
"""


class Ageing(Yard):
    """A yard whose wall time can be set forward: a run is safe from preemption for its first minute."""

    clock: Path

    def minutes_pass(self) -> None:
        self.clock.write_text(str(int(self.clock.read_text()) + 120))


@pytest.fixture(scope="module")
def yard(
    environment_cache: Path, tmp_path_factory: pytest.TempPathFactory, stepped: tuple[Path, Path]
) -> Iterator[Ageing]:
    library, offset = stepped
    made = Ageing(tmp_path_factory.mktemp("ageing"), environment_cache, simulate="GPU_1xA10=2")
    made.clock = offset
    made.set(LD_PRELOAD=str(library), STEPPED_CLOCK=str(offset))
    try:
        made.up()
        yield made
    finally:
        made.close()


@pytest.fixture
def code(yard: Ageing) -> dict[str, Any]:
    folder = yard.home / "training"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAINING)
    return {"type": "snapshot", "snapshot": {"root_path": str(folder)}}


def lines_of(yard: Yard, run_id: int, attempt: int, node: int = 0) -> list[str]:
    done = yard.ok("logs", str(run_id), "--attempt", str(attempt), "--node", str(node), "--no-follow")
    return [re.sub(r"^\[n\d+\] ", "", line) for line in done.splitlines()]


def steps_of(lines: list[str], word: str = "step") -> list[int]:
    found = (re.match(rf"{word} (\d+)", line) for line in lines)
    return [int(match[1]) for match in found if match]


def acknowledged(run: dict[str, Any], attempt: int = 0) -> int:
    """The step of an attempt's newest acknowledged checkpoint, -1 before the first."""
    attempts = run["attempts"]
    told = attempts[attempt]["checkpoint"] if len(attempts) > attempt else None
    return -1 if told is None else int(told["step"])


def urgent(yard: Ageing) -> int:
    yard.minutes_pass()
    return yard.submit(
        "sleep 2; echo urgent", accelerator="GPU_1xA10", nodes=2, compute={"priority_class": "CRITICAL"}
    )


def positions(yard: Yard, *run_ids: int) -> list[int | None]:
    found = {run["run_id"]: run["position"] for run in yard.data("queue")["runs"]}
    return [found.get(run_id) for run_id in run_ids]


def preempted(yard: Ageing, first: int, later: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    """Preempt ``first`` while another run waits behind it; return it at its end, and the two others."""
    behind = yard.submit(**later)
    high = urgent(yard)
    wait_for(lambda: None not in positions(yard, first, behind), what="both to wait", timeout=60)
    place = positions(yard, first, behind)
    assert place == sorted(place), "the preempted run kept its place"
    run = yard.ended(first, timeout=120)
    assert yard.ended(high)["outcome"] == "SUCCEEDED"
    return run, behind, high


def test_a_run_that_listens_saves_and_loses_nothing(yard: Ageing, code: dict[str, Any]) -> None:
    workload = {
        "command": "python train.py 80 listens",
        "accelerator": "GPU_1xA10",
        "nodes": 2,
        "code_source": code,
    }
    first = yard.submit(**workload)
    yard.until(first, lambda run: acknowledged(run) >= 0)
    run, behind, high = preempted(yard, first, workload)
    assert run["outcome"] == "SUCCEEDED"
    assert [attempt["outcome"] for attempt in run["attempts"]] == ["PREEMPTED", "SUCCEEDED"]
    assert run["attempts"][0]["stop"]["reason"] == "PREEMPTED"
    assert run["max_retries"] == run["retries_spent"] == 0
    before, after = (lines_of(yard, first, attempt) for attempt in (0, 1))
    assert re.fullmatch(r"PREEMPTED: leaving after \d+, \d+ s left", before[-1])
    last = acknowledged(run)
    assert steps_of(before)[-1] == last
    assert after[0] == f"begin at {last + 1} from step-{last}"
    assert steps_of(before) + steps_of(after) == list(range(80))
    assert acknowledged(run, 1) == 79
    # The urgent run had gone, and the one behind waited for its turn.
    others = [yard.get(high)["ended_at"], yard.ended(behind, timeout=120)["attempts"][0]["placed_at"]]
    assert others[0] <= run["attempts"][1]["placed_at"] <= others[1]


def test_a_run_that_does_not_listen_is_killed_and_keeps_place_and_retries(
    yard: Ageing, code: dict[str, Any]
) -> None:
    workload = {
        "command": "if [ $AIRYARD_ATTEMPT = 0 ]; then python train.py 100000 deaf; else python train.py 40 deaf; fi",
        "accelerator": "GPU_1xA10",
        "nodes": 2,
        "code_source": code,
        "preemption": {"grace_seconds": 1},
    }
    first = yard.submit(**workload)
    yard.until(first, lambda run: acknowledged(run) == 3)
    run, behind, _ = preempted(yard, first, workload)
    yard.ok("cancel", str(behind))
    assert run["outcome"] == "SUCCEEDED"
    assert [attempt["outcome"] for attempt in run["attempts"]] == ["PREEMPTED", "SUCCEEDED"]
    assert run["attempts"][0]["cause"] == "PREEMPTED"
    assert {member["signal"] for member in run["attempts"][0]["members"]} <= {9, 15}
    assert "killed after 1 s of grace" in json.dumps(run["attempts"][0])
    assert run["max_retries"] == run["retries_spent"] == 0
    before, after = (lines_of(yard, first, attempt) for attempt in (0, 1))
    assert steps_of(before) == list(range(steps_of(before)[-1] + 1))
    assert steps_of(before)[-1] > 3, "it went on after the stop"
    # What was acknowledged is not done again; what came after it is.
    assert acknowledged(run) == 3
    assert after[0] == "begin at 4 from step-3"
    assert steps_of(after) == list(range(4, 40))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_digits_ddp_goes_on_after_the_acknowledged_epoch(yard: Ageing) -> None:
    first = int(
        yard.data(
            "run", str(EXAMPLE), "--override", "parameters.epochs=250", "--override", "max_retries=0",
            "--override", "tracking=off",
        )["run_id"]
    )  # fmt: skip
    begun = yard.until(first, lambda run: acknowledged(run) >= 0 or run["state"] == "ENDED", timeout=240)
    if begun["cause"] == "ENVIRONMENT":
        pytest.skip(f"PyTorch cannot be had here: {begun['failure']['message'][:200]}")
    high = urgent(yard)
    run = yard.ended(first, timeout=200)
    assert yard.get(high)["outcome"] == "SUCCEEDED"
    assert [attempt["outcome"] for attempt in run["attempts"]] == ["PREEMPTED", "SUCCEEDED"]
    assert run["retries_spent"] == 0
    before, after = (lines_of(yard, first, attempt) for attempt in (0, 1))
    last = acknowledged(run)
    assert f"rank 0: asked to stop; epoch {last} is saved" in before
    assert f"rank 1: asked to stop; epoch {last} is saved" in lines_of(yard, first, 0, node=1)
    assert after[0] == f"rank 0: going on after epoch {last}"
    assert steps_of(before, "epoch") + steps_of(after, "epoch") == list(range(250))
