"""A training that logs metrics to MLflow in rhythm and calls no step: ``silent_training.py FOLDER [once|pause|apart]``.

After 14 metrics it hangs. ``once``: in the first attempt only, and the next one ends; ``pause``: until a file ``go`` is
in the folder, and then it logs on; ``apart``: rank 1 stands where it loads data, the others in a collective.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import mlflow


def wait_in_a_collective(until: Path | None) -> None:
    while until is None or not until.exists():
        time.sleep(0.1)


def wait_for_data() -> None:
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    what = sys.argv[2] if len(sys.argv) > 2 else ""
    hangs = what != "once" or os.environ["AIRYARD_ATTEMPT"] == "0"
    for step in range(14 if hangs else 3):
        if os.environ["NODE_RANK"] == "0":
            mlflow.log_metric("loss", 1 / (step + 1), step=step)
        time.sleep(1.2)
    if what == "apart" and os.environ["NODE_RANK"] == "1":
        wait_for_data()
    if hangs:
        wait_in_a_collective(Path(sys.argv[1]) / "go" if what == "pause" else None)
    for step in range(14, 400 if what == "pause" else 15):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
        time.sleep(0.5)
