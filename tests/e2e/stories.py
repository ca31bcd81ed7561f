"""Failure stories on several hosts: a fleet whose hosts share a store for checkpoints, and runs that leave stamps.

Owns: putting a fleet right between stories, reading the stamps, the seconds that a soak collects. Must not know: what
befalls whom.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.fleet import Fleet, fleet_on_hosts
from e2e.hosts import Host, Hosts
from e2e.yard import Yard, wait_for

TRAINING = Path(__file__).with_name("stamped_training.py")
LEASE_S = float(os.environ.get("STORY_LEASE_S", "6"))
"""Short, so that a story is; the server waits 4 s longer. With a standby it is 18 s (docs/leases.md)."""
ACCELERATOR = "GPU_8xH100"
AGENT, RAYLET = r"airyard\.node\.agent", r"/raylet "


def boot_ns() -> int:
    """Return CLOCK_BOOTTIME, which the hosts' processes stamp with, too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class StormyFleet(Fleet):
    """A fleet with a short lease. ``shared`` stands for storage that all hosts mount: there runs keep checkpoints."""

    def __init__(self, hosts: Hosts, folder: Path, cache: Path, *, lease_s: float = LEASE_S) -> None:
        super().__init__(hosts, folder, cache)
        self.shared = folder / "shared"
        self.shared.mkdir()
        config = self.home / "config.toml"
        kind = 'kind = "ray"\n'
        config.write_text(config.read_text().replace(kind, f"{kind}lease_seconds = {lease_s:g}\n"))
        self._joined: dict[str, tuple[str, ...]] = {}
        self._variables: dict[str, dict[str, str]] = {}

    def vary(self, host: Host, **variables: str) -> None:
        """Have everything of ``airyard`` on a host see more variables, from its next join on."""
        self._variables[host.name] = variables

    def on(
        self, host: Host, *arguments: str, timeout: float = 150, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """See Fleet."""
        return super().on(
            host, *arguments, timeout=timeout, **{**self._variables.get(host.name, {}), **environment}
        )

    def join(self, host: Host, *more: str) -> str:
        """See Fleet; what a host joined with it joins with again."""
        node = self.home_of(host) / "node"
        node.mkdir(parents=True, mode=0o700, exist_ok=True)
        if not (node / "runs").is_symlink():
            (node / "runs").symlink_to(self.shared)
        said = super().join(host, *more)
        self._joined[host.name] = more
        return said

    def join_again(self, *hosts: Host) -> None:
        """Have hosts that were off join as they did before, all at once."""
        self._at_once(lambda host: self.join(host, *self._joined[host.name]), hosts)

    def join_first(self) -> None:
        """Have all hosts but the server's join."""
        self._at_once(self.join, self.hosts.hosts[1:])

    def _at_once(self, action: Callable[[Host], str], hosts: list[Host] | tuple[Host, ...]) -> None:
        with ThreadPoolExecutor() as pool:
            for joined in [pool.submit(action, host) for host in hosts]:
                joined.result()

    def await_all(self) -> None:
        """Wait until every machine is there."""
        wanted = {f"{host.name}-cpu-0" for host in self.hosts.hosts[1:]}
        wait_for(lambda: wanted <= self.alive(), timeout=60, what="all machines to be there")

    def number(self, machine: str) -> int:
        """Return a host's number by its machine's name."""
        return int(machine.removeprefix("h"))

    @contextlib.contextmanager
    def only_on(self, *numbers: int) -> Iterator[None]:
        """Have runs placed on these hosts alone for a while: the others' nodes are cordoned."""
        others = [
            node["name"]
            for node in self.data("nodes")["nodes"]
            if self.number(node["machine"]) not in numbers
        ]
        self.ok("cordon", *others)
        try:
            yield
        finally:
            self.ok("uncordon", *others)

    def said(self, run_id: int, attempt: int = 0) -> list[dict[str, Any]]:
        """Return the log of an attempt as objects with their type; waits for its end if it may still come."""
        lines = self.ok("-o", "json", "logs", str(run_id), "--attempt", str(attempt)).splitlines()
        return [{"type": found["type"], **found["data"]} for found in map(json.loads, lines)]

    def verified(self) -> bool:
        """Return whether journal, read tables and memory agree."""
        return bool(self.call("admin", "verify").returncode == 0)


@contextlib.contextmanager
def stormy_fleet(
    count: int,
    folder: Path,
    cache: Path,
    make_yard: Callable[..., Yard],
    *,
    lease_s: float = LEASE_S,
    before: Callable[[StormyFleet], None] = lambda fleet: None,
) -> Iterator[StormyFleet]:
    """Make a fleet of h0 and ``count`` hosts; ``before`` is called before they join. Skips where hosts cannot be."""
    with fleet_on_hosts(
        1 + count, lambda hosts: StormyFleet(hosts, folder, cache, lease_s=lease_s), make_yard
    ) as made:
        before(made)
        made.join_first()
        yield made


@dataclass(kw_only=True)
class Story:
    """One training, and the marks that its attempts left."""

    fleet: StormyFleet
    nodes: int = 1
    fields: dict[str, Any] = field(default_factory=dict)
    """More of the workload."""
    folder: Path = field(init=False)
    run_id: int = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.fleet.folder / f"story-{time.monotonic_ns()}"
        self.folder.mkdir()
        self.run_id = self.fleet.submit(
            f"exec python {TRAINING} {self.folder}",
            accelerator=ACCELERATOR,
            nodes=self.nodes,
            **self.fields,
        )
        self.await_attempt(0)

    def run(self) -> dict[str, Any]:
        """Return the run's document."""
        return self.fleet.get(self.run_id)

    def machines(self, attempt: int = 0) -> list[str]:
        """Return where an attempt's members are, by member."""
        return [str(member["machine"]) for member in self.run()["attempts"][attempt]["members"]]

    def await_attempt(self, attempt: int, timeout: float = 60) -> None:
        """Wait until every process of an attempt has left a first stamp."""
        wanted = 3 * self.nodes
        wait_for(
            lambda: (
                sum("\n" in path.read_text() for path in self.folder.glob(f"stamps.{attempt}.*")) == wanted
            ),
            timeout=timeout,
            what=f"attempt {attempt} of run {self.run_id}",
        )

    def span(self, attempt: int) -> tuple[int, int]:
        """Return the first and the last stamp of an attempt, in nanoseconds."""
        stamps = [
            int(stamp)
            for path in self.folder.glob(f"stamps.{attempt}.*")
            for stamp in path.read_text().split("\n")[:-1]
        ]
        return min(stamps), max(stamps)

    def seconds_until(self, attempt: int, since_ns: int) -> float:
        """Return how long after ``since_ns`` an attempt's first process began."""
        return (self.span(attempt)[0] - since_ns) / 1e9

    def steps(self) -> int:
        """Return how many steps have ended in a checkpoint."""
        return len(list((self.fleet.shared / str(self.run_id) / "checkpoints").glob("step-*")))

    def await_steps(self, count: int) -> None:
        """Wait for so many checkpoints."""
        wait_for(lambda: self.steps() >= count, what=f"{count} steps of run {self.run_id}")

    def begun_at(self, attempt: int) -> int:
        """Return at which step an attempt began."""
        mark = f"attempt {attempt} begins at step "
        lines = [found["line"] for found in self.fleet.said(self.run_id, attempt) if found["type"] == "LOG"]
        return next(int(line.removeprefix(mark)) for line in lines if line.startswith(mark))

    def assert_apart(self) -> None:
        """No process of an attempt was alive together with one of another: by their stamps, and by their locks."""
        spans = [self.span(number) for number in range(len(self.run()["attempts"]))]
        for earlier, later in itertools.pairwise(spans):
            assert earlier[1] < later[0], spans
        overlaps = self.folder / "overlaps"
        assert not overlaps.exists(), overlaps.read_text()

    def finish(self, attempts: int, *, whole: bool = True) -> dict[str, Any]:
        """Let it end; it must succeed with so many attempts, each from a checkpoint of the one before it.

        ``whole``: every log is complete.
        """
        (self.folder / "go").touch()
        run = self.fleet.until(self.run_id, lambda run: run["state"] == "ENDED")
        if whole:
            run = self.fleet.ended(self.run_id)
        assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", attempts), run
        self.assert_apart()
        begun = [self.begun_at(number) for number in range(attempts)]
        assert begun[0] == 0
        assert all(earlier < later for earlier, later in itertools.pairwise(begun)), begun
        return run


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """Return what notes a duration of a story, in seconds: printed, and collected by a soak. Never asserted."""

    def tell(what: str, seconds: float) -> None:
        print(f"{what}: {seconds:.2f} s")
        record_property(what, f"{seconds:.3f}")

    return tell
