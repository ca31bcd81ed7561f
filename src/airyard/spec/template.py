"""What `airyard init` writes: a commented workload file and a script that runs as it is.

Owns: the texts of the templates.
Must not know: where they are written, whether files are there already.
"""

from __future__ import annotations

from airyard.core.errors import NotFound
from airyard.spec.problems import near_miss

_HELLO_YAML = """\
# A workload for `airyard run`. Field help: `airyard run -h config`.
experiment_name: {name}

compute:
  accelerator_type: {accelerator}   # GPU_<per node>x<MODEL>, or CPU; `airyard pools` lists what is there
  num_accelerators: {count}         # of the whole run; a multiple of those per node

code_source:
  root_path: .            # this folder; what .gitignore names stays behind

command: |
  python train.py

parameters:               # any tree; written as YAML to $HYPERPARAMETERS_PATH and logged to MLflow
  steps: 20
  learning_rate: 0.1

max_retries: 0
timeout_minutes: 10

# environment:
#   version: 6
#   dependencies:
#     - -r requirements.txt
# env_variables:
#   LOG_LEVEL: info
# secrets:
#   HF_TOKEN: hub/token   # `airyard secrets put hub/token`
"""

_HELLO_SCRIPT = '''\
"""A first run: reads its parameters, prints a falling loss, logs it to the MLflow run that Airyard made."""

import os
import time


def parameters() -> dict[str, float]:
    """Return the `parameters` of workload.yaml."""
    path = os.environ.get("HYPERPARAMETERS_PATH")
    if path is None:
        return {}
    import yaml

    with open(path) as file:
        return yaml.safe_load(file)


def main() -> None:
    """Descend a parabola."""
    given = parameters()
    steps, rate = int(given.get("steps", 20)), given.get("learning_rate", 0.1)
    print(f"node {os.environ.get('NODE_RANK', '0')} of {os.environ.get('NUM_NODES', '1')}", flush=True)
    tracked = "MLFLOW_RUN_ID" in os.environ and os.environ.get("NODE_RANK", "0") == "0"
    if tracked:
        import mlflow

        mlflow.start_run()  # goes on with the run of MLFLOW_RUN_ID
    position = 3.0
    for step in range(steps):
        loss = position * position
        position -= rate * 2 * position
        print(f"step {step} loss {loss:.6f}", flush=True)
        if tracked:
            mlflow.log_metric("loss", loss, step=step)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
'''

_DDP_YAML = """\
# A multi-node workload for `airyard run`. Field help: `airyard run -h config`.
experiment_name: {name}

compute:
  accelerator_type: {accelerator}   # GPU_<per node>x<MODEL>, or CPU; `airyard pools` lists what is there
  num_accelerators: {count}         # of the whole run: the number of nodes is this divided by those per node

environment:
  version: 6
  dependencies:
    - numpy
    - torch

code_source:
  root_path: .            # this folder; what .gitignore names stays behind

# Runs once on each node; torchrun starts one process per device.
command: |
  torchrun --nnodes $NUM_NODES --node_rank $NODE_RANK --nproc_per_node $LOCAL_WORLD_SIZE \\
    --master_addr $MASTER_ADDR --master_port $MASTER_PORT train.py

max_retries: 2            # each attempt goes on from the last checkpoint
timeout_minutes: 60

preemption:
  grace_seconds: 120      # to save and leave when a more urgent run needs the place
  # max_loss: 30m         # rather evict others while more work than this would be lost
"""

_DDP_SCRIPT = '''\
"""Data-parallel training that resumes: checkpoints go to AIRYARD_CHECKPOINT_DIR and are acknowledged."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from airyard import checkpoint

STEPS, SAVE_EVERY = 200, 50


def save(folder: Path, step: int, model: torch.nn.Module) -> None:
    """Write a checkpoint, then tell Airyard that the gang can go on from it."""
    path = folder / "last.pt"
    partial = folder / "last.pt.partial"
    torch.save({"step": step, "model": model.state_dict()}, partial)
    partial.rename(path)
    checkpoint.saved(step, path)


def asked_to_stop(device: torch.device) -> bool:
    """Let all ranks agree on the step after which they leave."""
    asked = torch.tensor([int(checkpoint.stop_requested())], device=device)
    dist.all_reduce(asked)
    return bool(asked.item())


def main() -> None:
    """Fit a line on every rank."""
    # A stop is noticed between two steps: its signal must not end a process in the middle of one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    model = torch.nn.Linear(8, 1).to(device)
    folder = Path(os.environ.get("AIRYARD_CHECKPOINT_DIR", "."))
    first = 0
    if (folder / "last.pt").exists():
        state = torch.load(folder / "last.pt", map_location=device)
        model.load_state_dict(state["model"])
        first = state["step"] + 1
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(first, STEPS):
        inputs = torch.randn(64, 8, device=device)
        loss = ((trained(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        leave = asked_to_stop(device)
        if leave or step % SAVE_EVERY == SAVE_EVERY - 1:
            if dist.get_rank() == 0:
                save(folder, step, model)
            dist.barrier()
        if leave:
            raise SystemExit(143)  # not 0, for a shell that would go on
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''

TEMPLATES = ("hello", "ddp")


def template_files(
    template: str = "hello", *, name: str | None = None, accelerator: str = "CPU", count: int = 1
) -> dict[str, str]:
    """Return the files of a template by name.

    Raises: NotFound for an unknown template.
    """
    if template not in TEMPLATES:
        near = near_miss(template, TEMPLATES)
        raise NotFound(
            f"there is no template {template!r}; there are {', '.join(TEMPLATES)}",
            code="NO_SUCH_TEMPLATE",
            fix=f"`airyard init --template {near or TEMPLATES[0]}`",
        )
    workload, script = (_HELLO_YAML, _HELLO_SCRIPT) if template == "hello" else (_DDP_YAML, _DDP_SCRIPT)
    text = workload.format(name=name or template, accelerator=accelerator, count=count)
    return {"workload.yaml": text, "train.py": script}
