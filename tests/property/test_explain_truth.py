"""Every counterfactual is true: applied to the snapshot, a fresh plan places the run, or evicts for it as announced."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.counterfactual import Change, Counterfactual, counterfactuals
from airyard.core.scheduling.eta import etas
from airyard.core.scheduling.plan import Plan, Snapshot, Waiting
from airyard.core.scheduling.planner import plan_snapshot
from airyard.core.workload import Compute, Priority
from explain_yard import node
from planner_seeds import NOW_MS, snapshot_of

SEEDS = st.integers(min_value=0, max_value=1 << 32)
SEEN: Counter[Change] = Counter()


def yard_of(seed: int) -> Snapshot:
    """Make a yard; every third has a few nodes of another model."""
    snapshot = snapshot_of(seed)
    if seed % 3:
        return snapshot
    others = tuple(
        node(f"a{index}", 4, accelerator="GPU_4xA10", model="A10", pool="a10") for index in range(2)
    )
    return replace(snapshot, nodes=(*snapshot.nodes, *others))


def changed(want: Waiting, found: Counterfactual) -> Waiting:
    """Apply what the run itself would have to ask otherwise."""
    detail = found.detail
    match found.change:
        case Change.FEWER_NODES:
            return replace(want, nodes=detail["nodes"])
        case Change.FEWER_DEVICES | Change.OTHER_ACCELERATOR:
            compute = Compute.of(detail["accelerator"])
            return replace(
                want,
                accelerator=compute.accelerator,
                model=compute.model,
                devices_per_node=compute.devices_per_node,
                pool=None if found.change is Change.OTHER_ACCELERATOR else want.pool,
            )
        case Change.ANY_POOL:
            return replace(want, pool=None)
        case Change.ANY_FABRIC:
            return replace(want, same_fabric=False)
        case Change.HIGHER_CLASS:
            return replace(want, rank=Priority(detail["priority"]).rank)
        case Change.SHORTER_LIMIT:
            limit_ms = detail["timeout_s"] * 1000
            return replace(
                want,
                limit_ms=limit_ms,
                expected_ms=min(want.expected_ms, limit_ms),
                likely_ms=min(want.likely_ms, limit_ms),
            )
        case Change.RELEASED | Change.BEGUN:
            return replace(want, held=False, begin_ms=0, not_before_ms=0)
    return want


def applied(snapshot: Snapshot, want: Waiting, found: Counterfactual) -> Snapshot:
    """Apply a counterfactual to the snapshot."""
    detail, policy = found.detail, snapshot.policy
    waiting = tuple(changed(one, found) if one.run_id == want.run_id else one for one in snapshot.waiting)
    snapshot = replace(snapshot, waiting=waiting)
    match found.change:
        case Change.RUNS_END:
            kept = tuple(one for one in snapshot.running if one.run_id not in detail["runs"])
            return replace(snapshot, running=kept)
        case Change.RESERVATION_ENDS:
            number = detail["reservation_id"]
            return replace(
                snapshot,
                reservations=tuple(one for one in snapshot.reservations if one.reservation_id != number),
            )
        case Change.NODES_RETURN:
            nodes = tuple(
                replace(one, alive=True, cordoned=False) if one.name in detail["nodes"] else one
                for one in snapshot.nodes
            )
            return replace(snapshot, nodes=nodes)
        case Change.BUDGET:
            return replace(snapshot, spent=snapshot.spent - {detail["project"]})
        case Change.HIGHER_CEILING | Change.HIGHER_USER_LIMIT:
            projects = []
            for project in policy.projects:
                if project.name == detail["project"] and "pool" in detail:
                    share = replace(project.share_of(detail["pool"]), ceiling=detail["ceiling"])
                    others = tuple(one for one in project.shares if one.pool != detail["pool"])
                    project = replace(project, shares=(*others, share))
                elif project.name == detail["project"]:
                    limits = {key: detail[key] for key in ("running", "devices") if key in detail}
                    project = replace(project, per_user=replace(project.per_user, **limits))
                projects.append(project)
            return replace(snapshot, policy=replace(policy, projects=tuple(projects)))
    return snapshot


def says(made: Plan, run_id: int) -> tuple[bool, set[int]]:
    """Return whether a plan starts a run, and whom it evicts for it."""
    started = any(start.run_id == run_id for start in made.starts)
    return started, {one.run_id for one in made.evictions if one.for_run == run_id}


@settings(max_examples=250, deadline=None)
@given(seed=SEEDS)
def test_applied_it_places_the_run(seed: int) -> None:
    snapshot = yard_of(seed)
    book = Book.of(snapshot, NOW_MS)
    before = deepcopy(book.picture())
    starts = etas(book, NOW_MS)
    for want in snapshot.waiting:
        eta = starts.get(want.run_id)
        for found in counterfactuals(book, want, NOW_MS, expected_ms=eta.p50_ms if eta else None):
            SEEN[found.change] += 1
            started, evicted = says(plan_snapshot(applied(snapshot, want, found), NOW_MS), want.run_id)
            assert started != bool(found.evicts), found
            assert evicted == set(found.evicts), found
        assert book.picture() == before


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_who_starts_now_needs_nothing_else(seed: int) -> None:
    snapshot = yard_of(seed)
    starting = {start.run_id for start in plan_snapshot(snapshot, NOW_MS).starts}
    book = Book.of(snapshot, NOW_MS)
    for want in snapshot.waiting:
        if want.run_id in starting:
            assert counterfactuals(book, want, NOW_MS) == []


def test_random_yards_show_every_kind_of_change() -> None:
    """Guard the guard: a maker that no longer leads to a kind of change would prove nothing about it."""
    for seed in range(600):
        snapshot = yard_of(seed)
        book = Book.of(snapshot, NOW_MS)
        starts = etas(book, NOW_MS, plans=20)
        for want in snapshot.waiting:
            eta = starts.get(want.run_id)
            for found in counterfactuals(book, want, NOW_MS, expected_ms=eta.p50_ms if eta else None):
                SEEN[found.change] += 1
    assert set(Change) == set(SEEN), SEEN
