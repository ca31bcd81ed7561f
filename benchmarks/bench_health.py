"""What monitoring costs an agent with eight GPUs, beside the same agent without it, and how soon a fault is acted on.

Owns: two agents over a stand-in for NVML that take turns in nothing but being measured at once; faults written into a
simulated node's log, and the time until the server has taken the node out. Must not know: rules. The stand-in answers
at once: a real driver's own time is not in these figures. Aims: below 1 % of a core, agent with its NVML process below
60 MB, hard fault to cordon p95 below 15 s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.bench_memory import NOTHING, Use, use_of
from benchmarks.figures import spread, verdict
from benchmarks.yards import BenchYard, bare_environment, scratch, yard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from airyard.adapters.agent_process import connected, start_agent
from airyard.sdk import Client
from fake_nvml import FakeGpus, compiled

SETTLE_S = 12.0
MOST_CPU = 1.0
MOST_MB = 60.0
MOST_S = 15.0
NODES = 100
WITH_A_RUN = {"gpus_idle_s": 5.0}
"""As often as while a run has a GPU."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class Measured:
    """An agent with the process that reads NVML for it."""

    pids: list[int]
    cpu_before_s: float = 0.0

    def cpu_s(self) -> float:
        """Return the processor time that they have used."""
        return sum(_cpu_s(pid) for pid in self.pids)

    def memory(self) -> Use:
        """Return what they use now."""
        return sum((use_of(pid) for pid in self.pids), NOTHING)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def agent(home: Path, gpus: FakeGpus, monitor: dict[str, Any]) -> Iterator[Measured]:
    """Give an agent that was told how to watch."""
    start_agent(home, {**bare_environment(), **gpus.environ})
    while True:
        try:
            stream = connected(home)
            break
        except OSError:
            time.sleep(0.02)
    with stream:
        stream.settimeout(60)
        locks = home / "locks"
        locks.mkdir()
        config = {"cpu_slots": 1, "system_gpu_lock_folder": str(locks)}
        hello = {"id": 1, "op": "hello", "protocol": 2, "oldest": 1, "config": config, "monitor": monitor}
        stream.sendall(json.dumps(hello).encode() + b"\n")
        answer = json.loads(stream.makefile("rb").readline())
        assert answer["ok"], answer
        pid = int(answer["result"]["machine"]["pid"])
        try:
            yield Measured(pids=[pid, *_helpers(pid)])
        finally:
            stream.sendall(b'{"id":2,"op":"stop"}\n')
            time.sleep(0.5)


def _helpers(pid: int) -> list[int]:
    """Return the processes of an agent that read NVML for it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == pid and b"nvml_child" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def cost(folder: Path, seconds: float) -> bool:
    """Measure both agents at the same time; return whether the aims are kept."""
    library = compiled()
    if library is None:
        print("no C compiler for the stand-in of NVML: what monitoring costs is not measured")
        return True
    gpus = FakeGpus(library=library, file=folder / "gpus")
    gpus.set(utilization=97, power_mw=690_000, clock_reasons=4)
    with (
        agent(folder / "on", gpus, WITH_A_RUN) as watched,
        agent(folder / "off", gpus, {"enabled": False}) as bare,
    ):
        time.sleep(SETTLE_S)
        for one in (watched, bare):
            one.cpu_before_s = one.cpu_s()
        began = time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began
        shares = [100 * (one.cpu_s() - one.cpu_before_s) / took_s for one in (watched, bare)]
        uses = [one.memory() for one in (watched, bare)]
        alone = use_of(watched.pids[0])
    print(f"an agent with 8 GPUs, {took_s:.0f} s, with the process that reads NVML:")
    print("                     CPU of a core      RSS       PSS")
    for name, share, use in zip(("monitoring on", "monitoring off"), shares, uses, strict=True):
        print(f"  {name:18} {share:9.2f} %    {use.rss_mb:6.1f} MB {use.pss_mb:6.1f} MB")
    more = shares[0] - shares[1]
    print(f"  the agent's own process with monitoring: RSS {alone.rss_mb:.1f} MB")
    print(
        f"  on / off: CPU {shares[0] / max(shares[1], 0.01):.2f}, PSS {uses[0].pss_mb / uses[1].pss_mb:.2f}"
    )
    print(f"  monitoring alone: {verdict(more, MOST_CPU, ' % of a core')}")
    print(f"  memory (PSS, both processes): {verdict(uses[0].pss_mb, MOST_MB, ' MB', digits=1)}")
    return more <= MOST_CPU and uses[0].pss_mb <= MOST_MB


def fault(one: BenchYard, node: str) -> None:
    """Let the kernel of a simulated node say that a GPU has a double-bit error."""
    line = "NVRM: Xid (PCI:0000:11:00): 48, pid=7, name=python3, DBE (double bit error)"
    with (one.home / "node" / "health" / "simulated-faults.jsonl").open("a") as file:
        file.write(json.dumps({"node": node, "device": 0, "kernel": line}) + "\n")


def until_out(client: Client, node: str) -> None:
    """Wait until the server has taken a node out."""
    while not any(step["after"] == "CORDONED" for step in client.health.events(node)["events"]):
        time.sleep(0.02)


def delays(folder: Path, tries: int) -> bool:
    """Measure from a line in the log to a node out of work; return whether the aim is kept."""
    found = []
    with yard(folder / "yard", up=("--simulate", f"GPU_1xA10={NODES}")) as one, one.client() as client:
        names = [node["name"] for node in client.nodes() if node["accelerator"] == "GPU_1xA10"]
        for node in names[:tries]:
            time.sleep(0.37)  # not in step with the looks
            began = time.monotonic()
            fault(one, node)
            until_out(client, node)
            found.append(time.monotonic() - began)
    late = quantiles(found, n=20)[-1]
    print(f"a hard fault's line in the log to the node out of work: {spread(found, 's', 2)}")
    print(f"  p95 {verdict(late, MOST_S, ' s')}")
    return late <= MOST_S


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 1 when an aim was missed."""
    parser = argparse.ArgumentParser(prog="bench_health", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter, and fewer faults")
    options = parser.parse_args(arguments)
    with scratch() as folder:
        kept = [cost(folder, 30.0 if options.quick else 120.0), delays(folder, 5 if options.quick else 20)]
    return 0 if all(kept) else 1
