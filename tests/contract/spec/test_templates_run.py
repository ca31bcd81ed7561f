"""What `airyard init` writes runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airyard.spec.load import load_workload
from airyard.spec.template import template_files


def start(folder: Path, **variables: str) -> str:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(folder: Path, template: str) -> Path:
    for name, text in template_files(template).items():
        (folder / name).write_text(text)
    return folder


def test_hello_reads_its_parameters(tmp_path: Path) -> None:
    folder = written(tmp_path, "hello")
    assert load_workload(folder / "workload.yaml").workload.parameters == {"steps": 20, "learning_rate": 0.1}
    (folder / "hyperparameters.yaml").write_text("steps: 2\nlearning_rate: 0.25\n")
    output = start(folder, HYPERPARAMETERS_PATH=str(folder / "hyperparameters.yaml"))
    assert output.splitlines() == ["node 0 of 1", "step 0 loss 9.000000", "step 1 loss 2.250000"]


def test_ddp_checkpoints_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the ddp template needs torch")
    folder = written(tmp_path, "ddp")
    gang = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29877",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    own = {"AIRYARD_CHECKPOINT_DIR": str(folder), "AIRYARD_CHECKPOINT_ACK": str(folder / "ack.json")}
    assert "step 0 loss" in start(folder, CUDA_VISIBLE_DEVICES="", **gang, **own)
    assert '"step": 199' in (folder / "ack.json").read_text()
    assert "step" not in start(folder, CUDA_VISIBLE_DEVICES="", **gang, **own)
