"""Changes of a yard in words: what each does, and how what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core.errors import UserError
from airyard.core.policy import DAY_MS, Policy, PoolOrder, ProjectPolicy, Share, Slicing
from airyard.core.scheduling.plan import NodeView
from airyard.sim.trace.changes import Nodes, Yard, changed, parse_change
from airyard.sim.trace.demand import even_nodes


def nodes(pool: str, count: int, each: int = 8) -> tuple[NodeView, ...]:
    """Nodes of one pool."""
    return tuple(
        replace(view, name=f"{pool}-{view.name}", machine=f"{pool}-{view.name}")
        for view in even_nodes(count * each, each, pool=pool)
    )


YARD = Yard(nodes=nodes("h100", 4), policy=Policy(), projects=frozenset({"nlp", "vision"}))
TWO_POOLS = replace(YARD, nodes=(*nodes("h100", 4), *nodes("a10", 2, 4)))


def after(yard: Yard, *texts: str) -> Yard:
    """The yard after changes in words."""
    return changed(yard, [parse_change(text) for text in texts])


def refused(yard: Yard, *texts: str) -> str:
    """The message and the next step of a refusal."""
    with pytest.raises(UserError) as caught:
        after(yard, *texts)
    assert caught.value.code == "BAD_CHANGE"
    assert caught.value.fix is not None
    return f"{caught.value.message} {caught.value.fix.text}"


def test_nodes_that_are_added_are_like_the_others() -> None:
    found = after(YARD, "pool h100 +4 nodes")
    assert len(found.nodes) == 8
    assert [node.name for node in found.nodes[4:]] == [f"h100-new-{number}" for number in (1, 2, 3, 4)]
    assert {(node.accelerator, node.total, node.pool, node.alive) for node in found.nodes} == {
        ("GPU_8xGPU", 8, "h100", True)
    }
    assert len(after(YARD, "pool h100 +1 node", "pool h100 +1 node").nodes) == 6


def test_nodes_that_are_taken_away_are_the_last() -> None:
    found = after(YARD, "POOL H100 -3 Nodes")
    assert [node.name for node in found.nodes] == ["h100-n1"]


def test_rules_of_a_pool() -> None:
    pool = after(YARD, "pool h100 order fair", "pool h100 slicing on", "pool h100 ageing 3d").policy.pool(
        "h100"
    )
    assert (pool.order, pool.slicing, pool.ageing_ms, pool.reservations) == (
        PoolOrder.FAIR,
        Slicing(),
        3 * DAY_MS,
        8,
    )
    pool = after(YARD, "pool h100 reservations 0", "pool h100 slicing off").policy.pool("h100")
    assert (pool.reservations, pool.slicing, pool.order) == (0, None, PoolOrder.PREDICTED)


def test_shares_of_a_project_declared_or_not() -> None:
    project = after(YARD, "project nlp guarantee 8", "project nlp ceiling 16", "project nlp weight 1.5")
    assert project.policy.projects == (
        ProjectPolicy(name="nlp", shares=(Share(pool="h100", guarantee=8, ceiling=16, weight=1.5),)),
    )
    again = after(project, "project nlp ceiling none")
    assert again.policy.projects[0].shares[0].ceiling is None


def test_the_pool_may_be_left_out_where_only_one_can_be_meant() -> None:
    in_a10 = after(TWO_POOLS, "project nlp guarantee 4 in pool A10")
    assert in_a10.policy.projects[0].shares == (Share(pool="a10", guarantee=4),)
    assert after(in_a10, "project nlp weight 2").policy.projects[0].shares == (
        Share(pool="a10", guarantee=4, weight=2.0),
    )
    assert "in which pool; there are a10, h100" in refused(TWO_POOLS, "project nlp guarantee 4")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a change that can be tried"),
        ("pool h100", "pool P order fifo|fair|predicted"),
        ("pool h100 4 nodes", "knows no rule '4' of a pool"),
        ("pool h100 +0 nodes", "1 to 100,000"),
        ("pool h100 +99999999999999 nodes", "1 to 100,000"),
        ("pool h100 -4 nodes", "leaves nothing of pool h100, which has 4 nodes. Take at most 3 away"),
        ("pool h200 +1 nodes", "names pool 'h200'; there is h100; did you mean 'h100'"),
        ("pool h100 order lifo", "there are fifo, fair, predicted"),
        ("pool h100 slicing maybe", "it is on or off"),
        ("pool h100 ageing soon", "write it as 12h or 3d"),
        ("pool h100 ageing 0d", "write it as 12h or 3d"),
        ("pool h100 reservations -1", "a whole number from 0"),
        ("pool h100 reservations 2000", "0 to 1000 are possible"),
        ("project nlq guarantee 1", "names project 'nlq'; there are nlp, vision; did you mean 'nlp'"),
        ("project nlp guarantee -1", "a whole number from 0"),
        ("project nlp guarantee 33", "makes the guarantees in pool h100 33 devices; it has 32"),
        ("project nlp weight 0", "a number over 0"),
        ("project nlp budget 3", "knows no rule 'budget' of a project"),
        ("project nlp guarantee 1 in pool h1000", "names pool 'h1000'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_there_is(text: str, said: str) -> None:
    assert said in refused(YARD, text)


def test_a_ceiling_under_the_guarantee_is_refused() -> None:
    said = refused(YARD, "project nlp guarantee 8", "project nlp ceiling 4")
    assert "the ceiling of 4 devices is under the guarantee of 8" in said
    assert "raise the ceiling to 8" in said


def test_a_change_keeps_its_words() -> None:
    change = parse_change("pool  h100 +4 nodes")
    assert isinstance(change, Nodes)
    assert change.text == "pool  h100 +4 nodes"
