"""A gang whose ranks tell of their steps: one that hangs is named with its stack, a slow one too, a well one never."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
GANG = Path(__file__).with_name("gang_of_steps.py")


def progress(yard: Yard, run_id: int, until: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return what explain says of a run's steps once it is as wanted."""
    said: dict[str, Any] = {}

    def look() -> bool:
        said.clear()
        said.update(yard.data("explain", str(run_id)).get("progress") or {})
        return bool(said and until(said))

    wait_for(look, 120)
    return said


def test_the_rank_that_hangs_is_named_with_its_stack(yard: Yard) -> None:
    run_id = yard.submit(f"python {GANG} hang", hang={"timeout_seconds": 5})
    said = progress(yard, run_id, lambda found: found["stall"] and "stuck" in str(found["stall"]["evidence"]))
    stall = said["stall"]
    assert (stall["case"], stall["ranks"], stall["limit_ms"]) == ("COMPUTING", [2], 5000)
    assert "stuck_in_the_loader" in stall["evidence"][0]
    assert "rank 2 on" in yard.ok("explain", str(run_id))
    run = yard.until(run_id, lambda found: found["attempts"][0]["stall"])
    noted = run["attempts"][0]["stall"]
    assert (noted["ranks"], noted["over_at"]) == ([2], None)
    log = yard.call("logs", str(run_id), "--no-follow")
    assert "rank 2 has made no step for" in log.stdout + log.stderr
    yard.ok("cancel", str(run_id))
    yard.ended(run_id)


def test_a_run_that_hangs_is_started_again(yard: Yard) -> None:
    asked = {"timeout_seconds": 5, "action": "restart"}
    run_id = yard.submit(f"python {GANG} once", hang=asked, max_retries=1)
    run = yard.ended(run_id, timeout=120)
    first, second = run["attempts"]
    assert (first["cause"], first["stop"]["reason"], first["stall"]["ranks"]) == ("USER_CODE", "STALLED", [2])
    assert "rank 2 on" in first["failure"]["message"]
    assert any("stuck_in_the_loader" in text for text in first["stall"]["evidence"])
    judged = yard.until(run_id, lambda found: found["attempts"][0]["judgement"])["attempts"][0]["judgement"]
    verdict = judged["verdict"]
    assert (verdict["class"], verdict["cause"], verdict["first_rank"]) == ("user", "USER_CODE", 2)
    assert verdict["rule"] == f"hang.{first['stall']['case'].lower()}"
    assert verdict["message"] == first["failure"]["message"]
    assert (second["outcome"], run["outcome"]) == ("SUCCEEDED", "SUCCEEDED")


@pytest.mark.parametrize(("what", "slow"), [("slow", [2]), ("well", [])])
def test_who_computes_slowly_is_named(yard: Yard, what: str, slow: list[int]) -> None:
    run_id = yard.submit(f"python {GANG} {what}")
    # A window is at least twenty steps, and told after five seconds at most.
    said = progress(yard, run_id, lambda found: found["step"] > 700 or found["stragglers"])
    assert said["stall"] is None
    assert [one["rank"] for one in said["stragglers"]] == slow
    yard.ok("cancel", str(run_id))
    yard.ended(run_id)


def test_all_ranks_are_looked_at_when_one_hangs_and_their_logs_say_where_they_stand(yard: Yard) -> None:
    run_id = yard.submit(f"python {GANG} hang", hang={"timeout_seconds": 5})
    stall = progress(
        yard,
        run_id,
        lambda found: found["stall"] and f"airyard logs {run_id} --attempt 0" in str(found["stall"]),
    )["stall"]
    assert (stall["case"], stall["ranks"]) == ("COMPUTING", [2])

    def log() -> str:
        shown = yard.call("logs", str(run_id), "--no-follow")
        return shown.stdout + shown.stderr

    wait_for(lambda: log().count("look at the stall: rank") >= 4, 60)
    looked = log()
    for rank in range(4):
        assert f"look at the stall: rank {rank}, process" in looked
    assert "stuck_in_the_loader" in looked
    assert looked.count("train (gang_of_steps.py") >= 4
    yard.ok("cancel", str(run_id))
    yard.ended(run_id)


def states(yard: Yard) -> set[str]:
    """Return the states of the ranks' processes, as the kernel names them."""
    found = set()
    for pid, line in yard.processes().items():
        if line.startswith("python") and GANG.name in line:
            found.add(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0])
    return found


def test_a_person_who_tries_has_a_run_hang_and_go_on(yard: Yard) -> None:
    run_id = yard.submit(f"python {GANG} well", accelerator="GPU_1xA10", hang={"timeout_seconds": 5})
    progress(yard, run_id, lambda found: found["step"] > 20)
    (member,) = yard.get(run_id)["attempts"][0]["members"]
    assert "stand still" in yard.ok("dev", "fault", member["node"], "hang")
    assert states(yard) == {"T"}
    yard.until(run_id, lambda found: found["attempts"][0]["stall"], timeout=120)
    yard.ok("dev", "fault", member["node"], "--clear")
    assert "T" not in states(yard)
    over = yard.until(run_id, lambda found: found["attempts"][0]["stall"]["over_at"])
    assert over["state"] == "ACTIVE"
    slowing = yard.start("dev", "fault", member["node"], "straggler", "--seconds", "30")
    wait_for(lambda: "T" in states(yard), what="a straggler")
    wait_for(lambda: "T" not in states(yard), what="a straggler that works, too")
    slowing.send_signal(signal.SIGINT)
    slowing.communicate(timeout=30)
    assert "T" not in states(yard)
    off = yard.call("dev", "fault", member["node"], "power-off")
    assert off.returncode == 2
    assert "airyard dev fleet" in off.stderr
    yard.ok("cancel", str(run_id))
    yard.ended(run_id)
    (slot, *_) = [node["name"] for node in yard.data("nodes")["nodes"] if not node["simulated"]]
    real = yard.call("dev", "fault", slot, "xid-79")
    assert real.returncode == 2
    assert "is not simulated" in real.stderr
