"""``airyard sim trace`` and ``airyard sim what-if --trace`` from the command line, on small files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import slurm_samples
from airyard.cli.main import run

ROWS = "submit_s,duration_s,gpus,team\n0,36000,4,nlp\n3600,7200,8,nlp\n7200,10800,4,vision\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trace of three runs: half a node for long, a whole node, half a node."""
    path = tmp_path / "small.csv"
    path.write_text(ROWS)
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The data of a command that succeeds."""
    code = run(["sim", *map(str, arguments), "-o", "json"])
    out = capsys.readouterr().out
    assert code == 0, out
    return json.loads(out)["data"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message and the next step of a command that is refused."""
    assert run(["sim", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_the_policies_side_by_side_in_words(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "trace", str(file), "--gpus", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "small.csv: 3 runs of 68 GPU-hours that came within 2 h, on 8 GPUs in 1 node: load 425 %"
    )
    heads = lines[2]
    assert [heads.index(title) for title in ("strict FIFO", "FIFO with fill", "shortest first", "Airyard")]
    waits = next(line for line in lines if line.startswith("waiting, mean"))
    assert waits.split()[3:6] == ["6.33", "3.00", "3.00"]


def test_the_same_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "trace", file, "--gpus", 8, "--policies", "fifo,fill")
    assert [one["policy"] for one in found["policies"]] == ["fifo", "fill"]
    fifo = found["policies"][0]
    assert fifo["waiting_h"]["mean"] == pytest.approx((0 + 9 + 10) / 3)
    assert fifo["longest_wait_d"] == pytest.approx(10 / 24)
    assert fifo["idle_placeable_gpu_h"] == 32
    assert set(fifo["share"]) == {"nlp"}
    assert fifo["cost"]["plans"] > 0
    assert found["demand"]["gpus"] == 8


def test_options_reach_the_replay(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("submit_s,duration_s,gpus,team\n0,36000,8,nlp\n10800,3600,8,vision\n")
    common = ("trace", file, "--gpus", 8, "--policies", "airyard")
    assert answer(capsys, *common)["policies"][0]["preemptions"] == 0
    sliced = answer(capsys, *common, "--slicing")["policies"][0]
    assert (sliced["preemptions"], sliced["lost_gpu_h"]) == (1, 0)
    lossy = answer(capsys, *common, "--slicing", "--no-last-checkpoint", "--checkpoint-interval", "2h")
    assert lossy["policies"][0]["lost_gpu_h"] == 8
    dear = answer(capsys, *common, "--slicing", "--preemption-cost", "30m")["policies"][0]
    assert dear["leaving_gpu_h"] == 4
    none = answer(capsys, *common, "--slicing", "--checkpoint-interval", "none")["policies"][0]
    assert none["preemptions"] == 0
    failing = answer(capsys, *common, "--failures-per-gpu-day", 2, "--repair", "1h", "--seed", 3)["policies"][
        0
    ]
    assert failing["stops_by_failures"] > 0
    assert answer(capsys, *common, "--first", 1)["demand"]["runs"] == 1


def test_a_policy_from_a_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "yard.yaml"
    policy.write_text(
        "pools: {gpu: {accelerator: GPU_8xH100, order: fifo}}\nprojects: {nlp: {pools: {gpu: {ceiling: 4}}}}\n"
    )
    found = answer(capsys, "trace", file, "--gpus", 8, "--policies", "airyard", "--policy", policy)
    assert found["policies"][0]["unended"] == 1
    assert "Airyard: 1 run never started, the first: " in found["stuck"][0]
    policy.write_text("pools: {h100: {accelerator: GPU_8xH100}}\n")
    assert "declares pool h100; the replayed yard has gpu" in refusal(
        capsys, "trace", file, "--gpus", 8, "--policy", policy
    )


def test_a_run_that_never_fits_is_left_out_and_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "trace", str(file), "--gpus", "4", "--gpus-per-node", "4", "--policies", "fill"]) == 0
    assert (
        "Left out: 1 run that would not fit the empty yard (run 2: it asks 2 nodes" in capsys.readouterr().out
    )


def test_of_a_single_run_neither_days_nor_load_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.csv"
    file.write_text("submit_s,duration_s,gpus,team\n0,60,1,a\n")
    assert run(["sim", "trace", str(file), "--gpus", "8", "--policies", "fill"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "one.csv: 1 run of 0.017 GPU-hours, on 8 GPUs in 1 node"
    file.write_text("submit_s,duration_s,gpus,team\n0,60,16,a\n")
    assert "its only run would not fit the yard" in refusal(capsys, "trace", file, "--gpus", "8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give --gpus N"),
        (["--gpus", "0"], "0 is not in the range"),
        (["--gpus", "8", "--policies", "best"], "there are fifo, fill, oracle, airyard"),
        (["--gpus", "8", "--repair", "soon"], "is not a duration such as 90s"),
        (["--gpus", "8", "--checkpoint-interval", "soon"], "or `none`"),
        (["--gpus", "2", "--gpus-per-node", "2"], "none of its 3 runs would fit the yard"),
        (["--gpus", "8", "--format", "sacct"], "small.csv"),
    ],
)
def test_what_makes_no_sense_is_refused(
    file: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, "trace", file, *arguments)


def test_nodes_go_with_sacct_only(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "trace", file, "--gpus", 8, "--nodes-file", file)
    assert "go with --format sacct" in said


def test_a_missing_and_a_malformed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refusal(capsys, "trace", tmp_path / "none.csv", "--gpus", 8)
    bad = tmp_path / "bad.csv"
    bad.write_text(ROWS + "x,1,1,nlp\n")
    assert "line 5, column submit_s" in refusal(capsys, "trace", bad, "--gpus", 8)


def test_a_slurm_record_is_shown_beside_what_really_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {
        "sacct.txt": "\n".join(
            slurm_samples.jobs(
                slurm_samples.row(JobID="1"),
                slurm_samples.row(
                    JobID="2",
                    Submit="2026-03-02T08:20:00",
                    Start="2026-03-02T10:20:00",
                    End="2026-03-02T12:20:00",
                ),
            )
        ),
        "nodes.txt": "\n".join(slurm_samples.node(f"n{number:02}") for number in range(1, 7)),
        "assoc.txt": "Account|User|Share|ParentName|GrpTRES\nroot||1||\nnlp||1|root|gres/gpu=16\nnlp|ann|1||\n",
        "qos.txt": slurm_samples.QOS,
        "topology.txt": slurm_samples.TOPOLOGY,
    }
    for name, text in parts.items():
        (tmp_path / name).write_text(text)
    arguments = [
        "sim", "trace", str(tmp_path / "sacct.txt"), "--format", "sacct", "--nodes-file", str(tmp_path / "nodes.txt"),
        "--associations", str(tmp_path / "assoc.txt"), "--qos", str(tmp_path / "qos.txt"),
        "--topology", str(tmp_path / "topology.txt"),
    ]  # fmt: skip
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "2 runs of" in out
    assert "on 48 GPUs in 6 nodes" in out
    heads = next(line for line in out.splitlines() if "strict FIFO" in line)
    assert heads.split()[0] == "really"
    waits = next(line for line in out.splitlines() if line.startswith("waiting, mean"))
    assert waits.split()[3:] == ["1.08", "0.00", "0.00", "0.00", "0.83"], (
        "really 10 min and 2 h; nlp has a ceiling of 16"
    )
    assert "Not carried over:" in out
    found = answer(capsys, *arguments[1:])
    assert found["policies"][0]["policy"] == "recorded"
    assert [one["what"] for one in found["not_carried"]] == ["qos-limits"]


def test_what_more_nodes_would_change(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "what-if", "--trace", file, "--gpus", 8, "--change", "pool gpu +1 node")
    before = found["before"]["waiting_h"]["mean"]
    assert before >= 3, "run 2 waits for the end of run 1"
    assert found["after"]["waiting_h"]["mean"] == 0
    assert found["change"]["waiting_mean_h"] == -before
    assert (found["demand"]["before"]["gpus"], found["demand"]["after"]["gpus"]) == (8, 16)
    assert run(["sim", "what-if", "--trace", str(file), "--gpus", "8", "--change", "pool gpu +1 node"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Change: pool gpu +1 node" in lines
    waits = next(line for line in lines if line.startswith("waiting, mean"))
    assert waits.split()[3:] == [f"{before:.2f}", "0.00", f"-{before:.2f}", "-100", "%"]


def test_changes_of_policy_and_several_at_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys, "what-if", "--trace", file, "--gpus", 8,
        "--change", "pool gpu reservations 0", "--change", "project vision ceiling 2",
    )  # fmt: skip
    assert found["changes"] == ["pool gpu reservations 0", "project vision ceiling 2"]
    assert (found["before"]["unended"], found["after"]["unended"]) == (0, 1)


def test_changes_that_cannot_be_are_refused_before_anything_is_replayed(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("what-if", "--trace", file, "--gpus", 8, "--change")
    assert "there is gpu" in refusal(capsys, *common, "pool h100 +1 nodes")
    assert "there are nlp, vision" in refusal(capsys, *common, "project audio weight 2")
    assert "Write one of" in refusal(capsys, *common, "buy more")
    assert "Missing option '--change'" in refusal(capsys, "what-if")
    assert "--gpus goes with --trace" in refusal(
        capsys, "what-if", "--gpus", 8, "--change", "pool p +1 nodes"
    )
