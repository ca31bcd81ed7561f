"""The program that makes GPUs work, run by an interpreter that has torch: ``python torch_child.py TEST [--full]``.

Owns: the tests themselves; the last line of its output is their result as JSON. Must not know: Airyard: it stands
alone, because the environment whose Python runs it has no Airyard. ``group`` runs on CPUs, too (gloo).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import functools
import hashlib
import importlib
import json
import os
import signal
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

_BEGAN_S = time.monotonic()
_MIB = 1 << 20
_DIE_WITH_PARENT = 1
_FAST_SIZES = (256 * _MIB,)
_FULL_SIZES = (8, 4096, _MIB, 32 * _MIB, 256 * _MIB, 2048 * _MIB)


def _each_gpu(torch: Any, work: Callable[[int], Any]) -> dict[str, Any]:
    """Do ``work`` on all GPUs at once. Raises: RuntimeError for one that failed."""
    found: dict[str, Any] = {}
    failed: list[str] = []

    def one(index: int) -> None:
        try:
            torch.cuda.set_device(index)
            found[str(index)] = work(index)
        except Exception as error:  # it is told below, in the thread that ends the program
            failed.append(f"GPU {index}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=one, args=(index,)) for index in range(torch.cuda.device_count())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError("; ".join(failed))
    return found


def _gb_s(torch: Any, index: int, copy: Callable[[], Any], octets: int, seconds: float) -> float:
    copy()
    torch.cuda.synchronize(index)
    began, times = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        copy()
        torch.cuda.synchronize(index)
        times += 1
    return times * octets / (time.monotonic() - began) / 1e9


def copies(torch: Any, full: bool) -> dict[str, Any]:
    """Copy 256 MiB to and from each GPU, all at once."""
    octets = 256 * _MIB

    def work(index: int) -> tuple[float, float]:
        host = torch.empty(octets, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(octets, dtype=torch.uint8, device=index)
        return (
            _gb_s(torch, index, lambda: device.copy_(host, non_blocking=True), octets, 2.0),
            _gb_s(torch, index, lambda: host.copy_(device, non_blocking=True), octets, 2.0),
        )

    found = _each_gpu(torch, work)
    return {
        "to_device": {device: both[0] for device, both in found.items()},
        "to_host": {device: both[1] for device, both in found.items()},
    }


def peers(torch: Any, full: bool) -> dict[str, Any]:
    """Copy 256 MiB between each pair of GPUs, one pair after another."""
    count, octets, pairs = torch.cuda.device_count(), 256 * _MIB, {}
    for one in range(count):
        for other in range(count):
            if one == other:
                continue
            source = torch.empty(octets, dtype=torch.uint8, device=one)
            target = torch.empty(octets, dtype=torch.uint8, device=other)
            copy = functools.partial(target.copy_, source, non_blocking=True)
            pairs[f"{one}-{other}"] = _gb_s(torch, other, copy, octets, 0.2)
    return {"pairs": pairs}


def gemm(torch: Any, full: bool) -> dict[str, Any]:
    """Multiply bf16 matrices for some seconds on each GPU."""
    size, seconds = 8192, 15.0 if full else 3.0

    def work(index: int) -> float:
        first = torch.randn(size, size, device=index, dtype=torch.bfloat16)
        second = torch.randn(size, size, device=index, dtype=torch.bfloat16)
        for _ in range(5):
            first @ second
        torch.cuda.synchronize(index)
        began, times = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            for _ in range(10):
                first @ second
            torch.cuda.synchronize(index)
            times += 10
        return 2.0 * size**3 * times / (time.monotonic() - began) / 1e12

    return {"tflops": _each_gpu(torch, work)}


def memory(torch: Any, full: bool) -> dict[str, Any]:
    """Fill four fifths of the free memory with patterns and read them back; time copies within it."""

    def work(index: int) -> tuple[int, float]:
        free, _ = torch.cuda.mem_get_info(index)
        words = int(free * 0.8) // 16  # two buffers of int64
        first = torch.empty(words, dtype=torch.int64, device=index)
        second = torch.empty(words, dtype=torch.int64, device=index)
        wrong = 0
        for pattern in (0x5555555555555555, -0x5555555555555556, 0, -1):
            first.fill_(pattern)
            second.copy_(first)
            for start in range(0, words, 1 << 27):
                wrong += int((second[start : start + (1 << 27)] != pattern).sum().item())
        # A copy reads and writes.
        return wrong, _gb_s(torch, index, lambda: second.copy_(first), 2 * words * 8, 3.0)

    found = _each_gpu(torch, work)
    return {
        "miscompares": {device: both[0] for device, both in found.items()},
        "gb_s": {device: both[1] for device, both in found.items()},
    }


def checksum(torch: Any, full: bool) -> dict[str, Any]:
    """Compute one product from the same numbers three times on each GPU."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    numbers = torch.Generator().manual_seed(20)
    first = torch.randn(4096, 4096, generator=numbers)
    second = torch.randn(4096, 4096, generator=numbers)

    def work(index: int) -> list[str]:
        one, other = first.to(index), second.to(index)
        sums = []
        for _ in range(3):
            product = one
            for _ in range(8):
                product = product @ other
                product = product / product.abs().max()
            sums.append(hashlib.sha256(product.cpu().numpy().tobytes()).hexdigest())
        return sums

    return {"checksums": _each_gpu(torch, work)}


def burn(torch: Any, full: bool) -> dict[str, Any]:
    """Repeat one product at full load for five minutes, and compare each result with the first."""
    size, seconds = 8192, 300.0

    def work(index: int) -> tuple[int, int]:
        first = torch.randn(size, size, device=index, dtype=torch.bfloat16)
        second = torch.randn(size, size, device=index, dtype=torch.bfloat16)
        wanted = first @ second
        wrong = rounds = 0
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            results = [first @ second for _ in range(10)]
            wrong += sum(int(not torch.equal(result, wanted)) for result in results)
            rounds += len(results)
        return wrong, rounds

    found = _each_gpu(torch, work)
    return {
        "miscompares": {device: both[0] for device, both in found.items()},
        "rounds": {device: both[1] for device, both in found.items()},
    }


def all_reduce(torch: Any, full: bool) -> dict[str, Any]:
    """Sum over all GPUs of the machine: one process each, by NCCL."""
    count = torch.cuda.device_count()
    if count < 2:
        return {"skipped": "fewer than two GPUs"}
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            sys.executable,
            __file__,
            "group",
            "--backend",
            "nccl",
            "--store",
            f"file://{folder}/meet",
        ]
        processes = [
            subprocess.Popen(
                [*arguments, "--rank", str(rank), "--world", str(count), *(["--full"] if full else [])],
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(count)
        ]
        out, _ = processes[0].communicate()
        if any(process.wait() for process in processes):
            raise RuntimeError("a rank failed")
    told: dict[str, Any] = json.loads(out.decode().strip().splitlines()[-1])
    return told


def group(torch: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Be one rank of a sum over many: right on all ranks, and the bus bandwidth by message size (on rank 0)."""
    dist = importlib.import_module("torch.distributed")
    on_gpu = options.backend == "nccl"
    device = "cpu"
    if on_gpu:
        index = int(os.environ.get("LOCAL_RANK", options.rank % torch.cuda.device_count()))
        torch.cuda.set_device(index)
        device = f"cuda:{index}"
    phases = _Phases(dist, options)
    dist.init_process_group(
        options.backend, rank=options.rank, world_size=options.world, **phases.meeting_place()
    )
    if options.joined >= 0:
        os.write(options.joined, b"joined\n")
    phases.joined()
    sizes = [int(size) for size in options.sizes.split(",")] if options.sizes else None
    gb_s, wrong = {}, 0
    for size in sizes or (_FULL_SIZES if options.full else _FAST_SIZES):
        right, speed = _sum(torch, dist, device, size, options, phases)
        gb_s[str(size)] = speed
        wrong += not right
    verdicts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(options.world)]
    dist.all_gather(verdicts, torch.tensor([wrong], dtype=torch.int64, device=device))
    phases.leave()
    dist.destroy_process_group()
    return {"wrong": [rank for rank, each in enumerate(verdicts) if int(each.item())], "gb_s": gb_s}


class _Phases:
    """Where this rank stands, told to the others in the store of rank 0, again and again while its process lives.

    A thread tells it, because the one that sums may wait for ever, and looks where all stand when nothing goes on in
    time: twice, so that it is seen who still tells, and whether anybody goes on. That is a line of the output, and
    the process stays, for others still look.
    """

    _BEAT_S, _BETWEEN_S, _ANSWERS_S = 0.5, 3.0, 2.0

    def __init__(self, dist: Any, options: argparse.Namespace) -> None:
        self._dist, self._options = dist, options
        self._lock = threading.Lock()
        self._phase, self._sums, self._joined_s = "came", 0, 0.0
        self._is_up = threading.Event()
        place = urllib.parse.urlsplit(options.store)
        self._address = (place.hostname, place.port) if place.scheme == "tcp" and place.port else None
        if self._address is None:
            return
        if options.join_s > 0:
            threading.Thread(target=self._watch, daemon=True).start()
        self._store = self._connect(options.join_s or 300.0, serves=options.rank == 0)
        if options.rank == 0:
            for rank in range(options.world):
                self._store.set(f"phase/{rank}", "")
        self._is_up.set()

    def _connect(self, timeout_s: float, *, serves: bool = False) -> Any:
        timeout = datetime.timedelta(seconds=timeout_s)
        world = self._options.world
        host, port = self._address or ("", 0)
        return self._dist.TCPStore(host, port, world, serves, timeout=timeout, wait_for_workers=False)

    def meeting_place(self) -> dict[str, Any]:
        """Return how the ranks meet, for ``init_process_group``."""
        return {"init_method": self._options.store} if self._address is None else {"store": self._store}

    def joined(self) -> None:
        self._joined_s = time.monotonic()
        self._phase = "joined"

    def summed(self) -> None:
        self._sums += 1
        self._phase = f"summed {self._sums}"

    def leave(self) -> None:
        """Tell that this rank is through. Rank 0 waits for the others: with it the store goes, and what it knows."""
        options = self._options
        with self._lock, contextlib.suppress(Exception):  # rank 0 is gone: then nobody looks any more
            self._phase = "done"
            if self._address is not None:
                self._store.set(f"phase/{options.rank}", "done|0")
        if options.rank or options.join_s <= 0 or self._address is None:
            return
        until = self._joined_s + options.sum_s + self._BETWEEN_S + 1.5 * self._ANSWERS_S
        with contextlib.suppress(Exception):
            while time.monotonic() < until:
                if all(told.startswith("done") for told in self._read(self._store)):
                    return
                time.sleep(0.05)

    def _watch(self) -> None:
        options, store, beats = self._options, None, 0
        until = _BEGAN_S + options.join_s  # importing torch is part of it
        has_joined = has_told = False
        before: list[str] | None = None
        while True:
            time.sleep(self._BEAT_S)
            beats += 1
            with self._lock:
                if self._phase == "done":
                    return
                try:
                    if self._is_up.is_set():
                        store = store or self._connect(self._ANSWERS_S)
                        store.set(f"phase/{options.rank}", f"{self._phase}|{beats}")
                except Exception:
                    store = None
            if self._joined_s and not has_joined:
                has_joined, until = True, self._joined_s + options.sum_s
            if has_told or options.no_look or time.monotonic() < until:
                continue
            now = self._look()
            if now is not None and before is None:
                before, until = now, time.monotonic() + self._BETWEEN_S
                continue
            has_told = True
            sys.stdout.write(json.dumps(_compared(before, now)) + "\n")
            sys.stdout.flush()

    def _look(self) -> list[str] | None:
        """Return what each rank told last; None where the store does not answer.

        On a thread and a connection of their own: some versions of torch wait for ever for one that stands still.
        """
        found: list[list[str]] = []

        def read() -> None:
            with contextlib.suppress(Exception):
                found.append(self._read(self._connect(self._ANSWERS_S)))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(self._ANSWERS_S)
        return found[0] if found else None

    def _read(self, store: Any) -> list[str]:
        keys = [f"phase/{rank}" for rank in range(self._options.world)]
        return [told.decode() for told in store.multi_get(keys)]


def _compared(before: list[str] | None, now: list[str] | None) -> dict[str, Any]:
    """Return where each rank stands, which of them do not tell any more, and whether any of them went on."""
    if before is None or now is None:
        return {"stuck": None}
    phases = [told.partition("|")[0] for told in now]
    quiet = [
        rank for rank, told in enumerate(now) if told == before[rank] and phases[rank] not in ("", "done")
    ]
    moved = phases != [told.partition("|")[0] for told in before]
    return {"stuck": phases, "quiet": quiet, "moved": moved}


def _sum(
    torch: Any, dist: Any, device: str, size: int, options: argparse.Namespace, phases: _Phases
) -> tuple[bool, float]:
    count, world = max(1, size // 4), options.world
    # Whole numbers below 2^24 are exact in float32, whatever the order of the sum.
    mine = torch.full((count,), float(options.rank + 1), device=device)
    dist.all_reduce(mine)
    right = bool((mine == float(world * (world + 1) // 2)).all().item())
    phases.summed()
    times, synchronise = (20, torch.cuda.synchronize) if device != "cpu" else (3, lambda: None)
    data = torch.ones(count, device=device)
    for _ in range(2):
        dist.all_reduce(data)
        data.fill_(1.0)
    synchronise()
    phases.summed()
    began = time.monotonic()
    for _ in range(times):
        dist.all_reduce(data)
    synchronise()
    took_s = (time.monotonic() - began) / times
    phases.summed()
    return right, 2 * (world - 1) / world * count * 4 / max(took_s, 1e-9) / 1e9


_TESTS = {
    "copies": copies,
    "peers": peers,
    "gemm": gemm,
    "memory": memory,
    "checksum": checksum,
    "burn": burn,
    "all_reduce": all_reduce,
}


def main() -> int:
    """Run one test and print what it measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("test", choices=[*_TESTS, "group"])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--store", default="env://")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--sizes", default="")
    parser.add_argument(
        "--joined", type=int, default=-1, help="a descriptor to write to once all ranks have come together"
    )
    parser.add_argument("--no-look", action="store_true", help="tell where it stands, and let others look")
    parser.add_argument("--join-s", type=float, default=0.0, help="0: nobody looks where ranks stand")
    parser.add_argument("--sum-s", type=float, default=30.0)
    options = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # it is in a session of its own
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        told: dict[str, Any] = {"skipped": "this environment has no torch"}
    else:
        needs_gpu = options.test != "group" or options.backend == "nccl"
        if needs_gpu and not torch.cuda.is_available():
            told = {"skipped": "needs a GPU: torch sees none"}
        elif options.test == "group":
            told = group(torch, options)
        else:
            told = _TESTS[options.test](torch, options.full)
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
