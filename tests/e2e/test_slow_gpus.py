"""A GPU that heat slows down under a gang: its node is suspected once its rank is slower than its peers, not before.

The GPUs are those of the stand-in for NVML; server, agent, runner and the gang's steps are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.yard import Yard, wait_for
from fake_nvml import FakeGpus, compiled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
GANG = Path(__file__).with_name("gang_of_steps.py")
AT_WORK: dict[str, int | str] = {"count": 4, "utilization": 97, "temperature": 71}
KIND = "GPU_4xH100"
ODD = 2


@pytest.fixture
def hot_yard(tmp_path: Path, environment_cache: Path) -> Iterator[tuple[Yard, FakeGpus]]:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    gpus = FakeGpus(library=library, file=tmp_path / "gpus")
    gpus.set(**AT_WORK)
    yard = Yard(tmp_path / "home", environment_cache)
    (tmp_path / "locks").mkdir(mode=0o777)
    (yard.home / "config.toml").write_text(
        f'[engine]\nsystem_gpu_lock_folder = "{tmp_path / "locks"}"\n[health.monitor]\ngpus_s = 1\n'
    )
    yard.set(**gpus.environ)
    yard.up()
    declared = tmp_path / "yard.yaml"
    # A run's own processes do not see the stand-in: to their checks NVML is gone.
    declared.write_text(f"pools:\n  hot: {{accelerator: {KIND}, preflight: off}}\n")
    yard.ok("apply", "-f", str(declared))
    yield yard, gpus
    yard.close()


def node_of(yard: Yard) -> str:
    return next(str(one["name"]) for one in yard.data("nodes")["nodes"] if one["accelerator"] == KIND)


def page(yard: Yard, node: str) -> Any:
    return yard.data("nodes", node)


def slow(yard: Yard, run_id: int) -> list[dict[str, Any]]:
    said = yard.data("explain", str(run_id)).get("progress") or {}
    return list(said.get("stragglers") or [])


def heat(gpus: FakeGpus, *, on: bool) -> None:
    hot: dict[str, int | str] = {f"gpu{ODD}__clock_reasons": 0x48, f"gpu{ODD}__temperature": 92}
    gpus.set(**AT_WORK, **(hot if on else {}))


def begun(yard: Yard, what: str) -> int:
    """Start a gang, with its GPUs cool; return once it steps."""
    run_id = yard.submit(f"python {GANG} {what}", accelerator=KIND)
    wait_for(lambda: step(yard, run_id) > 0, 120, "first step")
    return run_id


def step(yard: Yard, run_id: int) -> int:
    said = yard.data("explain", str(run_id)).get("progress") or {}
    return int(said.get("step") or 0)


def test_heat_counts_against_a_node_once_a_rank_is_slow_by_it(hot_yard: tuple[Yard, FakeGpus]) -> None:
    yard, gpus = hot_yard
    node = node_of(yard)
    well = begun(yard, "well")
    heat(gpus, on=True)

    def noted() -> bool:
        return any(one["node"] == node for one in yard.data("health", "events")["slowdowns"])

    wait_for(noted, 120, "throttling seen")
    since = step(yard, well)
    wait_for(lambda: step(yard, well) > since + 300, 120, "steps of a gang that is well")
    assert page(yard, node)["story"] == []  # throttled, and as fast as the others
    yard.ok("cancel", str(well))
    yard.ended(well)

    heat(gpus, on=False)
    lame = begun(yard, "slow")
    heat(gpus, on=True)
    wait_for(lambda: "SUSPECT" in [one["after"] for one in page(yard, node)["story"]], 150, "evidence")
    told = page(yard, node)["story"][-1]
    assert (told["after"], told["rule"]) == ("SUSPECT", "gpu.slowing")
    assert f"rank {ODD} of run {lame}" in told["evidence"][0]
    (one,) = slow(yard, lame)
    assert (one["rank"], one["throttled"]["device"], one["throttled"]["reasons"]) == (ODD, ODD, "heat")
    assert "by heat" in yard.ok("explain", str(lame))
    assert f"GPU {ODD} is throttled (heat)" in yard.ok("nodes", node)
    yard.ok("cancel", str(lame))
    yard.ended(lame)
