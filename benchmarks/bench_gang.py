"""One gang over four hosts: placed and submitted to started, and stops to the last member, beside Ray and Slurm.

Owns: the measurement and its limits. Must not know: how members are started or stopped. The hosts are namespaces of
this machine, so all that starts at once shares its cores, and all clocks are one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from benchmarks.figures import Way, ratios, spread, take_turns, verdict
from benchmarks.gang_fleet import KINDS, Gangs, all_stamps, boot_now_ms, gang_fleet, on_network_of
from benchmarks.gang_peers import BEGAN, RayActors, Srun, last_began_ms, slurm_on
from benchmarks.yards import scratch, wait_ended

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from e2e.gang_stamps import stop_of
from e2e.hosts import why_not

STARTED_LIMIT_MS = 300.0
STOPPED_LIMIT_MS = 1000.0
SAFE_S = 61.0
"""A run is safe from preemption for its first minute."""


class Starts:
    """Starts of Airyard's gangs, by a live client and by the whole command line."""

    def __init__(self, gangs: Gangs) -> None:
        self._gangs = gangs
        self.placed: list[float] = []
        """Placed to the last member's start, of every launch by the live client."""
        self.ready: list[float] = []
        """Of these, placed to ready: a runner made, its environment and code there, on every host."""

    def _file(self, folder: Path) -> Path:
        return self._gangs.file(f"FOLDER={folder} RANK=$NODE_RANK; {BEGAN}")

    def client(self) -> float:
        """Return the milliseconds from the submit until all members have begun."""
        folder = self._gangs.folder()
        path = self._file(folder)
        submitted_ms = time.time() * 1000
        run_id = self._gangs.submit(path)
        began_ms = last_began_ms(folder)
        attempt = self._gangs.attempt(run_id)
        placed_ms, ready_ms = (
            datetime.fromisoformat(attempt[name]).timestamp() * 1000 for name in ("placed_at", "ready_at")
        )
        self.placed.append(began_ms - placed_ms)
        self.ready.append(ready_ms - placed_ms)
        wait_ended(self._gangs.client, run_id)
        return began_ms - submitted_ms

    def command(self) -> float:
        """Return the milliseconds from the start of ``airyard run`` until all members have begun."""
        folder = self._gangs.folder()
        path = self._file(folder)
        fleet = self._gangs.fleet
        submitted_ms = time.time() * 1000
        process = fleet.start("run", str(path), "--watch")
        began_ms = last_began_ms(folder)
        _, complaint = process.communicate(timeout=60)
        if process.returncode != 0:
            raise RuntimeError(f"airyard run: exit {process.returncode}\n{complaint}")
        return began_ms - submitted_ms


def measure_starts(gangs: Gangs, rounds: int, ray: RayActors, slurm: Srun | None) -> None:
    """Print how long starts take, ours and the peers' in turns."""
    starts = Starts(gangs)
    peers: dict[str, Way] = {"ray, 4 cold actors": ray.launch}
    if slurm is not None:
        peers["srun -N4"] = slurm.launch
    ours: dict[str, Way] = {"live client": starts.client, "airyard run": starts.command}
    found = take_turns({**ours, **peers}, rounds)
    placed = starts.placed[-rounds:]
    print("4 members on 4 hosts, warm, tracking off: to the start of the last")
    print(f"  {'placed':24} {spread(placed)}; of it to the barrier {spread(starts.ready[-rounds:])}")
    for name, values in found.items():
        print(f"  {name:24} {spread(values)}")
    for peer in peers:
        print(f"  placed / {peer}: {ratios(placed, found[peer])}")
        for name in ours:
            print(f"  {name} / {peer}: {ratios(found[name], found[peer])}")
    print(f"  placed: p50 {verdict(statistics.median(placed), STARTED_LIMIT_MS, ' ms', digits=0)}")


class Stops:
    """Stops of gangs that wait for nothing else."""

    def __init__(self, gangs: Gangs) -> None:
        self._gangs = gangs
        self.accepted: list[float] = []
        """From the server's decision instead of the call."""

    def _to_last(self, run_id: int, folder: Path, called_ms: float) -> float:
        last_ms = max(all_stamps(folder, "stopped").values())
        self.accepted.append(last_ms - stop_of(self._gangs.attempt(run_id)))
        return last_ms - called_ms

    def cancel(self) -> float:
        """Return the milliseconds from the call of cancel until SIGTERM has reached all members."""
        run_id, folder = self._gangs.waiting()
        called_ms = boot_now_ms()
        self._gangs.client.cancel(run_id)
        spent_ms = self._to_last(run_id, folder, called_ms)
        wait_ended(self._gangs.client, run_id)
        return spent_ms

    def preempt(self, victim: tuple[int, Path], kind: str) -> float:
        """Return the milliseconds from a critical run's submit until SIGTERM has reached all members of its victim."""
        run_id, folder = victim
        path = self._gangs.file("true", kind, compute={"priority_class": "CRITICAL"})
        called_ms = boot_now_ms()
        critical = self._gangs.submit(path)
        spent_ms = self._to_last(run_id, folder, called_ms)
        wait_ended(self._gangs.client, critical)
        return spent_ms


def report_stops(what: str, stops: Stops, called: Sequence[float]) -> None:
    """Print how long stops took, and whether they keep the limit."""
    accepted = stops.accepted[-len(called) :]
    print(f"  {what}, from the call      {spread(called)}")
    print(f"  {what}, from its decision  {spread(accepted)}")
    print(f"  {what}: slowest {verdict(max(accepted), STOPPED_LIMIT_MS, ' ms', digits=0)}")


def measure_stops(gangs: Gangs, rounds: int, slurm: Srun | None, *, preempt: bool) -> None:
    """Print how long stops take until the last of four members has the signal."""
    victims = {kind: gangs.waiting(kind) for kind in KINDS} if preempt else {}
    began_s = time.monotonic()
    print("4 members on 4 hosts: to SIGTERM at the last")
    stops = Stops(gangs)
    ways: dict[str, Way] = {"cancel": stops.cancel} | ({"scancel": slurm.cancel} if slurm else {})
    found = take_turns(ways, rounds)
    report_stops("cancel", stops, found["cancel"])
    if slurm:
        print(f"  scancel                    {spread(found['scancel'])}")
        print(f"  cancel / scancel, from the call: {ratios(found['cancel'], found['scancel'])}")
    if victims:
        time.sleep(max(0.0, SAFE_S - (time.monotonic() - began_s)))
        called = [stops.preempt(victim, kind) for kind, victim in victims.items()]
        report_stops("preemption", stops, called)
        for run_id, _ in victims.values():
            gangs.end(run_id)


def main(arguments: Sequence[str] = ()) -> int:
    """Print starts and stops of gangs on four hosts; 0 when nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gang", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, no preemption, to see that it works"
    )
    quick = parser.parse_args(arguments).quick
    if (reason := why_not()) is not None:
        print(f"skipped: no hosts made of namespaces here: {reason}")
        return 0
    with scratch() as folder, ExitStack() as stack:
        fleet = stack.enter_context(gang_fleet(folder))
        slurm = stack.enter_context(slurm_on(fleet))
        ray = RayActors(fleet)
        stack.callback(ray.close)
        stack.enter_context(on_network_of(fleet.hosts[0]))
        gangs = Gangs(fleet)
        stack.callback(gangs.client.close)
        measure_starts(gangs, 3 if quick else 20, ray, slurm)
        measure_stops(gangs, 2 if quick else 10, slurm, preempt=not quick)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
