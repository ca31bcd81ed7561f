"""Yards of any size for the planner's benchmarks: full of running gangs, with a long mixed queue.

Owns: what such a yard consists of. Must not know: what is measured.
"""

from __future__ import annotations

import random

from airyard.core.placement import Seat
from airyard.core.policy import Policy, PoolPolicy, ProjectPolicy, Share
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.plan import NodeView, Plan, Running, Waiting

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
PROJECTS = 20
SHAPES = ((1, 1, 50), (2, 1, 10), (4, 1, 10), (8, 1, 20), (8, 2, 6), (8, 4, 3), (8, 16, 1))
"""Devices a node, nodes, and how many of a hundred runs are so."""
CLASSES = (0, *([1] * 14), *([2] * 5))
"""One run of twenty is CRITICAL, a quarter BEST_EFFORT."""


class PlannerYard:
    """A book with ``nodes`` nodes of eight devices, in fabrics of 32 and racks of 8."""

    def __init__(self, nodes: int, waiting: int, seed: int = 1) -> None:
        self.draw = random.Random(seed)
        self.now_ms = NOW_MS
        self.next_id = 1
        share = nodes * 8 // (2 * PROJECTS)
        projects = tuple(
            ProjectPolicy(
                name=f"p{index}", shares=(Share(pool="h100", guarantee=share, weight=1 + index % 3),)
            )
            for index in range(PROJECTS)
        )
        self.book = Book(
            Policy(pools=(PoolPolicy(name="h100", accelerator="GPU_8xH100"),), projects=projects)
        )
        for index in range(nodes):
            self.book.put_node(_node(index))
        for _ in range(waiting + nodes * 4):
            self.submit()
        self.settle(waiting)

    def submit(self) -> None:
        """Queue one more run."""
        draw = self.draw
        devices, nodes, _ = draw.choices(SHAPES, weights=[shape[2] for shape in SHAPES])[0]
        expected_ms = int(draw.lognormvariate(4.0, 1.5) * MINUTE_MS)
        self.book.put_waiting(
            Waiting(
                run_id=self.next_id,
                rank=draw.choice(CLASSES),
                queued_ms=self.now_ms - draw.randrange(600 * MINUTE_MS),
                accelerator=f"GPU_{devices}xH100",
                model="H100",
                devices_per_node=devices,
                nodes=nodes,
                project=f"p{draw.randrange(PROJECTS)}",
                expected_ms=expected_ms,
                likely_ms=expected_ms * 3,
            ),
            self.now_ms,
        )
        self.next_id += 1

    def settle(self, waiting: int) -> None:
        """Place what fits, until the yard is full and so many wait."""
        from airyard.core.scheduling.planner import plan

        for _ in range(20):
            made = plan(self.book, self.now_ms)
            self.carry_out(made)
            if not made.starts and not made.evictions:
                break
        while len(self.book.queue.runs) < waiting:
            self.submit()

    def carry_out(self, made: Plan) -> None:
        """Let the plan's runs start, and its victims leave at once."""
        for eviction in made.evictions:
            self.book.drop(eviction.run_id)
        for start in made.starts:
            self._start(start.run_id, start.seats)

    def _start(self, run_id: int, seats: tuple[Seat, ...]) -> None:
        want = self.book.queue.runs[run_id]
        past_ms = self.draw.randrange(10 * 60 * MINUTE_MS)
        self.book.put_running(
            Running(
                run_id=run_id,
                attempt=0,
                rank=want.rank,
                placed_ms=self.now_ms - past_ms,
                seats=seats,
                stopping=False,
                project=want.project,
                owner=want.owner,
                pool="h100",
                end_ms=self.now_ms + want.expected_ms,
                late_end_ms=self.now_ms + want.likely_ms,
                safe_ms=self.now_ms - past_ms,
            )
        )

    def end(self) -> None:
        """Let one running attempt end."""
        run_id = self.draw.choice(tuple(self.book.running))
        self.book.drop(run_id)


def _node(index: int) -> NodeView:
    return NodeView(
        name=f"n{index}",
        machine=f"m{index}",
        accelerator="GPU_8xH100",
        model="H100",
        pool="h100",
        total=8,
        devices=tuple(range(8)),
        cpus=128.0,
        memory_bytes=1 << 40,
        alive=True,
        cordoned=False,
        simulated=False,
        fabric=f"f{index // 32}",
        rack=f"r{index // 8}",
    )
