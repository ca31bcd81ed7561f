"""Preflight as a runner does it: a real child process, nvidia-ml-py over the compiled stand-in, certificates."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airyard.checks import site_limits
from airyard.checks.preflight import __main__ as program
from airyard.checks.preflight import certificate
from airyard.checks.preflight.compute import run_child
from airyard.core.health.facts import CheckResult, CheckStatus, Component
from airyard.node import preflight
from airyard.node.preflight import PreflightInterrupted, Unfit, refusing, run, unfit
from fake_nvml import FakeGpus, compiled

UUIDS = [f"GPU-fake-{index}" for index in range(8)]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    made = FakeGpus(library=library, file=tmp_path / "gpus")
    made.set()
    # What a runner hands on is the machine's environment; the stand-in is found by the loader's own variable.
    monkeypatch.setattr(preflight, "of_checks", lambda environ: {**environ, **made.environ})
    return made


def order(devices: tuple[int, ...] = (2, 3), **asked: Any) -> dict[str, Any]:
    return {
        "devices": list(devices),
        "visible_devices": ",".join(UUIDS[index] for index in devices),
        "preflight": {"profile": "fast", "strict": False, "uuids": UUIDS, **asked},
    }


def go(folder: Path, what: dict[str, Any]) -> list[str]:
    """Run it and return the notes. What this machine itself lacks must not matter: the node is not strict."""
    told: list[str] = []
    run(what, node="n1", node_folder=folder, note=told.append)
    return told


def test_a_healthy_node_is_certified_and_the_next_start_starts_nothing(
    gpus: FakeGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = go(tmp_path, order())
    assert any(line.startswith("preflight: ") and " checks in " in line for line in told)
    kept = certificate.load(preflight.certificate_path(tmp_path, "n1"))
    assert kept is not None
    assert kept.identity.uuids == tuple(UUIDS)
    assert {one["check"] for one in kept.checks} >= {
        "gpu.count",
        "card.identity",
        "compute.burn",
        "net.clock",
    }

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(preflight.subprocess, "Popen", forbidden)
    assert go(tmp_path, order(devices=(0,))) == []


def test_a_bad_gpu_refuses_its_member_and_no_other(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.set(gpu3__ecc_uncorrected=2)
    go(tmp_path, order(devices=(0, 1)))
    assert certificate.load(preflight.certificate_path(tmp_path, "n1")) is None, "not all of the node is well"
    with pytest.raises(Unfit) as refused:
        go(tmp_path, order(devices=(2, 3)))
    assert refused.value.cause == "DEVICE"
    assert "node n1 failed gpu.ecc_uncorrected: GPU 3 (GPU-fake-3)" in refused.value.message
    assert "(measured 2, limit 0); next: reset the GPU" in refused.value.message


@pytest.mark.parametrize("reading", [{"count": 7}, {"error__nvmlInit_v2": 9}, {"driver": "575.51.03"}])
def test_what_is_wrong_with_the_node_is_the_nodes(
    gpus: FakeGpus, tmp_path: Path, reading: dict[str, Any]
) -> None:
    gpus.set(**reading)
    with pytest.raises(Unfit) as refused:
        go(tmp_path, order())
    assert refused.value.cause == "NODE"


def test_a_driver_that_hangs_is_unknown_lets_the_member_go_on_and_gives_no_certificate(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    gpus.set(hang="nvmlDeviceGetTemperature")
    told = go(tmp_path, order())
    assert any("unknown gpu.temperature" in line for line in told)
    assert certificate.load(preflight.certificate_path(tmp_path, "n1")) is None


def test_checks_that_give_no_answer_let_the_member_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_MODULE", "airyard.no_such_module")
    assert go(tmp_path, order()) == ["preflight: the checks gave no answer; the node n1 is used as it is"]
    assert go(tmp_path, {**order(), "preflight": None}) == []


def test_a_run_that_is_to_end_ends_the_checks(tmp_path: Path) -> None:
    with pytest.raises(PreflightInterrupted):
        run(order(), node="n1", node_folder=tmp_path, note=lambda _: None, should_stop=lambda: True)


def test_where_nobody_asked_for_checks_only_what_is_sure_refuses_a_member() -> None:
    def fail(component: Component, device: int | None = None, check: str = "gpu.lost") -> CheckResult:
        return CheckResult(
            check=check, status=CheckStatus.FAIL, message="m", component=component, device=device
        )

    unsure = (
        "host.shm",
        "host.names",
        "kernel.faults",
        "gpu.nvlink",
        "gpu.fabric",
        "gpu.clocks",
        "compute.gemm",
    )
    results = [
        *(fail(Component.GPU, None, check) for check in unsure),
        fail(Component.GPU, 1, "gpu.rows"),
        fail(Component.DISK, None, "host.disk"),
        fail(Component.HOST, None, "site.own"),
    ]
    assert [one.check for one in refusing(results, (0,), strict=False)] == ["host.disk", "site.own"]
    assert [one.check for one in refusing(results, (1,), strict=False)] == [
        "gpu.rows",
        "host.disk",
        "site.own",
    ]
    assert len(refusing(results, (1,), strict=True)) == len(results)
    assert unfit("n1", [fail(Component.NVLINK, 1)]).cause == "NODE"
    assert unfit("n1", [fail(Component.GPU, 1), fail(Component.DISK)]).message.endswith("; 1 more")


def test_limits_with_an_error_leave_the_last_good_ones_and_new_ones_void_a_certificate(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    go(tmp_path, order())
    file = tmp_path / "thresholds.toml"
    file.write_text("version = 1\n[all]\nidle_temperature_warn = 30\n")
    assert any("warn gpu.temperature" in line for line in go(tmp_path, order())), "its certificate is void"
    file.write_text("version = 1\n[all]\nidle_temperature_wern = 90\n")
    table, told = site_limits.limits_of(file)
    assert table["all"]["idle_temperature_warn"][0] == 30
    assert f"{file} cannot be used: [all] idle_temperature_wern: no check asks for it" in told[0].message
    assert told[0].next_step.startswith("Write `[all]`")
    file.with_name(".thresholds.toml.good").unlink()
    table, told = site_limits.limits_of(file)
    assert table["all"]["idle_temperature_warn"][0] == 60
    assert "the packaged limits hold" in told[0].message


def test_the_limits_of_a_pool_go_before_the_machines_and_void_a_certificate_of_others(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    (tmp_path / "thresholds.toml").write_text("version = 1\n[all]\nidle_temperature_warn = 30\n")
    hot = {"pool": "train", "tables": {"all": {"idle_temperature_warn": 90}}}
    assert not any("gpu.temperature" in line for line in go(tmp_path, order(limits=hot)))
    assert go(tmp_path, order(limits={**hot, "pool": "other"})) == [], "the same limits by another name"
    assert any("warn gpu.temperature" in line for line in go(tmp_path, order())), "no pool's limits: void"
    hard = {"pool": "train", "tables": {"all": {"memory_gib_least": 10_000_000}}}
    with pytest.raises(
        Unfit, match=r"host.memory_size: .*limit 1e\+07 GiB: memory_gib_least of pool train\)"
    ):
        go(tmp_path, {**order(limits=hard, strict=True)})


def test_a_folder_that_the_pool_names_is_tried_and_another_one_voids_the_certificate(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    go(tmp_path, order(storage=[str(shared)]))
    kept = certificate.load(preflight.certificate_path(tmp_path, "n1"))
    assert kept is not None
    assert "storage.writes" in {one["check"] for one in kept.checks if one["status"] == "PASS"}
    assert go(tmp_path, order(storage=[str(shared)])) == []
    gone = [str(shared), str(tmp_path / "gone")]
    assert any(
        f"fail storage.writes: {gone[1]}: No such file" in line for line in go(tmp_path, order(storage=gone))
    )
    with pytest.raises(Unfit, match=r"node n1 failed storage.writes: .*gone: No such file") as refused:
        go(tmp_path, order(storage=gone, strict=True))
    assert refused.value.cause == "NODE"
    assert os.listdir(shared) == []


def test_what_another_node_has_just_failed_is_passed_again_whatever_is_certified(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    """Else nobody could tell whether the other node is ill, or the server that both use."""
    shared, path = tmp_path / "shared", preflight.certificate_path(tmp_path, "n1")
    shared.mkdir()
    asked = order(storage=[str(shared)], strict=True, afresh=["host.mounts", "storage.writes"])
    told: list[str] = []

    def passed(what: dict[str, Any]) -> tuple[str, ...]:
        told.clear()
        return run(what, node="n1", node_folder=tmp_path, note=told.append)

    go(tmp_path, order(storage=[str(shared)]))
    kept = certificate.load(path)
    assert kept is not None
    assert passed(asked) == ("passed.host.mounts", "passed.storage.writes")
    assert len(told) == 1
    assert "preflight: 2 checks in " in told[0]
    assert certificate.load(path) == kept
    assert passed(order(storage=[str(shared)])) == (), "nobody asked"
    shared.rmdir()
    with pytest.raises(Unfit, match=r"node n1 failed storage.writes: .*shared: No such file"):
        passed(asked)
    assert certificate.load(path) is None
    # Of a whole round those that are asked for count, and only where they passed.
    del asked["preflight"]["strict"]
    assert passed(asked) == ("passed.host.mounts",)


def test_a_pool_with_limits_that_are_none_keeps_its_checks(tmp_path: Path) -> None:
    odd = {"pool": "train", "tables": {"all": {"cpus_least": "many", "nvme_least": True, "mtu_least": None}}}
    setting = preflight.setting_of("", (), tmp_path, odd)
    results = preflight.check({"profile": "fast", "setting": setting.as_json()}, 75.0)
    assert results is not None
    (told,) = [one for one in results if one.check == "preflight.limits"]
    assert "limits of pool train cannot be used: [all] cpus_least is no number" in told.message
    assert {one.status for one in results if one.check == "host.processors"} <= {
        CheckStatus.PASS,
        CheckStatus.WARN,
    }


def test_a_child_that_is_late_is_killed_with_all_it_started(tmp_path: Path) -> None:
    child = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {child}; wait"
    outcome = run_child(["/bin/sh", "-c", script], 0.5)
    assert "was not done within 0.5 s" in outcome.problem
    until = time.monotonic() + 10
    while Path(f"/proc/{child.read_text().strip()}").exists() and time.monotonic() < until:
        time.sleep(0.05)
        if Path(f"/proc/{child.read_text().strip()}/stat").read_text().split()[2] == "Z":
            break
    else:
        assert not Path(f"/proc/{child.read_text().strip()}").exists()


@pytest.mark.parametrize(
    ("script", "problem", "values"),
    [
        ("print('noise'); print('{\"a\": 1}')", "", {"a": 1}),
        ("print('[1]')", "it crashed: exit code 0", {}),
        ("raise SystemExit('no')", "it crashed: no", {}),
        ("print('{')", "it crashed: exit code 0", {}),
    ],
)
def test_only_a_last_line_of_json_is_a_measurement(script: str, problem: str, values: dict[str, Any]) -> None:
    outcome = run_child([sys.executable, "-c", script], 60)
    assert (outcome.problem, dict(outcome.values)) == (problem, values)


def test_the_program_of_compute_tests_runs_alone_and_says_what_it_lacks() -> None:
    from airyard.checks.preflight.compute import TorchCompute

    outcome = TorchCompute(python=sys.executable).run("gemm", full=False, budget_s=60)
    assert outcome.problem == ""
    assert "torch" in outcome.skipped or outcome.values


@pytest.mark.gpu
def test_all_compute_checks_say_something_on_a_real_gpu() -> None:
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("needs a GPU")
    python = os.environ.get("AIRYARD_TORCH_PYTHON", sys.executable)
    wish = {"profile": "fast", "setting": {"python": python}}
    found = {one["check"]: one["status"] for one in json.loads(json.dumps(program.check(wish)))}
    assert found["compute.gemm"] in ("PASS", "WARN")
