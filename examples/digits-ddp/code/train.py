"""Trains a small network on scikit-learn's digits with DDP, one process a device, and survives being interrupted.

After every epoch rank 0 writes a checkpoint and acknowledges it; a later attempt of the same run goes on from there.
"""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from airyard import checkpoint


def parameters() -> dict:
    return yaml.safe_load(Path(os.environ["HYPERPARAMETERS_PATH"]).read_text())


class Checkpoints:
    """The newest state of the run, in the folder that all its attempts share."""

    def __init__(self) -> None:
        self.path = Path(os.environ["AIRYARD_CHECKPOINT_DIR"]) / "last.pt"

    def load(self, rank: int, device: torch.device) -> dict | None:
        """Return the state that rank 0 finds, on all ranks: on another machine the folder may be another one."""
        found = [None]
        if rank == 0 and self.path.exists():
            found = [torch.load(self.path, map_location="cpu", weights_only=True)]
        dist.broadcast_object_list(found, device=device)
        return found[0]

    def save(self, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        # By rename, so that a kill in the middle leaves the one before whole.
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.path)
        checkpoint.saved(epoch, self.path)


def data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.2, random_state=seed, stratify=labels)
    train_x, test_x, train_y, test_y = split

    def tensors(x, y) -> TensorDataset:
        return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))

    return tensors(train_x, train_y), tensors(test_x, test_y)


def accuracy(model: nn.Module, test: TensorDataset, device: torch.device) -> float:
    x, y = test.tensors
    with torch.no_grad():
        return (model(x.to(device)).argmax(dim=1).cpu() == y).float().mean().item()


def main() -> None:
    given = parameters()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.set_num_threads(1)
    torch.manual_seed(given["seed"])
    # torchrun passes the stop's signal on: it must not end a process in the middle of an epoch.
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))

    train, test = data(given["seed"])
    sampler = DistributedSampler(train, num_replicas=world, rank=rank, seed=given["seed"])
    loader = DataLoader(train, batch_size=given["batch_size"], sampler=sampler)
    network = nn.Sequential(nn.Linear(64, given["hidden"]), nn.ReLU(), nn.Linear(given["hidden"], 10)).to(
        device
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=given["learning_rate"], momentum=0.9)
    tracked = rank == 0 and os.environ["AIRYARD_TRACKING"] != "off"
    if tracked:
        import mlflow  # only here: the ranks that log nothing start sooner
    checkpoints = Checkpoints()
    first = 0
    if (state := checkpoints.load(rank, device)) is not None:
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
        print(f"rank {rank}: going on after epoch {state['epoch']}", flush=True)
    print(f"rank {rank} of {world} on {device}: {len(train)} training images", flush=True)

    for epoch in range(first, given["epochs"]):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        if rank == 0:
            right = accuracy(network, test, device)
            if tracked:
                mlflow.log_metrics({"loss": loss.item(), "accuracy": right}, step=epoch)
            checkpoints.save(epoch, network, optimizer)
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right:.4f}", flush=True)
        # All ranks must agree to leave at the same epoch, or the others would wait in the next all-reduce.
        leave = torch.tensor([int(bool(stopping) or checkpoint.stop_requested())], device=device)
        dist.all_reduce(leave)
        if leave.item():
            print(f"rank {rank}: asked to stop; epoch {epoch} is saved", flush=True)
            dist.destroy_process_group()
            raise SystemExit(143)

    right = accuracy(network, test, device)
    if rank == 0:
        output = Path(os.environ["AIRYARD_OUTPUT_DIR"])
        torch.save(network.state_dict(), output / "model.pt")
        print(f"final accuracy {right:.4f}", flush=True)
    dist.destroy_process_group()
    if right <= 0.95:
        raise SystemExit(f"accuracy {right:.4f} is not above 0.95")


if __name__ == "__main__":
    main()
