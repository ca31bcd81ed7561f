"""Who is named when a sum over a gang does not end: the rank that stands out, both ends of a silent way, or nobody."""

from __future__ import annotations

import pytest

from airyard.core.health.blame import CORDON_FROM, SUSPECT_FROM, hit_of, joined, score
from airyard.core.health.facts import HealthEvent
from airyard.core.health.gang_sums import (
    EDGES_SEEN,
    Earlier,
    Look,
    edges_in_doubt,
    events_of,
    is_doubted,
    silence_in_words,
)
from airyard.core.health.states import Hit

NAMES = {0: "a", 1: "b", 2: "c"}
MACHINES = {"a": "ma", "b": "mb", "c": "mc"}
HEAD = "preflight: net.all_reduce: the sum over the run's nodes did not end: "


def words(
    *phases: str, quiet: tuple[int, ...] = (), moved: bool = False, owners: tuple[int, ...] = ()
) -> str:
    look = Look(phases=phases, quiet=frozenset(quiet), moved=moved)
    return silence_in_words(look, owners or tuple(range(len(phases))), NAMES, teller=1)


def suspects(text: str, nodes: dict[str, str] | None = None) -> dict[str, float]:
    message = f"{HEAD}{text}; next: test the nodes in pairs"
    found = events_of(message, attempt="7.0", nodes=nodes if nodes is not None else MACHINES, at_ms=5)
    assert all(event.machine == MACHINES[event.node] for event in found)
    return {event.node: score([hit_of(event)]) for event in found}


@pytest.mark.parametrize(
    ("phases", "rank", "told"),
    [
        (("joined", "came", "joined"), "1 on node b", "that it came"),
        (("summed 1", "summed 1", "joined"), "2 on node c", "that it joined the others"),
        (("summed 2", "summed 11", "summed 11"), "0 on node a", "of a first sum"),
        (("done", "done", "summed 9"), "2 on node c", "of a first sum"),
    ],
)
def test_a_rank_that_came_less_far_singles_its_node_out(
    phases: tuple[str, ...], rank: str, told: str
) -> None:
    text = words(*phases)
    assert f"rank {rank} told {told}, and got no further" in text
    assert text.endswith(f"[suspect: {rank[-1]}]")
    (hint,) = suspects(text).values()
    assert 0 < hint < SUSPECT_FROM, "the run's own environment says so: it weighs as what a job prints"


@pytest.mark.parametrize(
    "text",
    [
        words("joined", "joined", "joined"),
        words("summed 2", "summed 2", "summed 2"),
        words("joined", "came", "came"),
        words("joined", "summed 1", "came", moved=True),
        "connection reset by peer",
    ],
)
def test_where_nobody_stands_out_all_have_a_hint_against_them_and_none_is_a_suspect(text: str) -> None:
    assert "[suspect" not in text
    found = suspects(text)
    assert set(found) == {"a", "b", "c"}
    assert all(0 < each < SUSPECT_FROM for each in found.values())


def test_who_tells_nothing_more_may_be_cut_off_from_where_all_meet() -> None:
    text = words("joined", "joined", "joined", quiet=(2,))
    assert "rank 2 on node c told that it joined the others, and then nothing more" in text
    found = suspects(text)
    assert set(found) == {"a", "c"}
    assert all(0 < each < SUSPECT_FROM for each in found.values())
    # It goes before how far somebody came: who is silent cannot tell of its sums.
    assert set(suspects(words("summed 1", "joined", "joined", quiet=(2,)))) == {"a", "c"}


def test_who_never_told_anything_may_not_reach_the_meeting_place() -> None:
    assert set(suspects(words("came", "", "came"))) == {"a", "b"}


def test_the_meeting_place_is_as_likely_as_who_asked_it() -> None:
    text = silence_in_words(Look(phases=None), (0, 1, 2), NAMES, teller=1)
    assert "node a, where the ranks meet, does not answer node b" in text
    assert set(suspects(text)) == {"a", "b"}


def test_of_two_nodes_the_one_behind_is_named() -> None:
    assert list(suspects(words("summed 1", "joined"), {"a": "ma", "b": "mb"})) == ["b"]


def test_many_ranks_of_one_node_are_one_node() -> None:
    text = words(*["summed 1"] * 4, *["joined"] * 4, owners=(0, 0, 0, 0, 1, 1, 1, 1))
    assert "rank 4 on node b, 5 on node b, 6 on node b, 7 on node b told" in text
    assert text.endswith("[suspect: b]")
    one_gpu = words("summed 1", "summed 1", "summed 1", "joined", owners=(0, 0, 1, 1))
    assert "rank 3 on node b told" in one_gpu


def test_only_nodes_of_the_gang_and_only_what_stands_before_the_next_step_is_read() -> None:
    assert set(suspects("it hung [suspect: stranger]")) == {"a", "b", "c"}
    assert set(suspects("it hung; next: look [suspect: a]")) == {"a", "b", "c"}
    assert suspects("it hung [suspect: a b]") == suspects("it hung [suspects: a b]")
    assert events_of(f"{HEAD}it hung", attempt="7.0", nodes={"a": "ma"}, at_ms=5) == ()


def test_the_edges_that_it_may_be_are_told() -> None:
    (first, *_) = events_of(f"{HEAD}it hung", attempt="7.0", nodes=MACHINES, at_ms=5)
    assert first.evidence[1] == "edges that it may be: a - b, a - c, b - c"
    many = {f"n{number:02}": "m" for number in range(40)}
    (first, *_) = events_of(f"{HEAD}it hung", attempt="7.0", nodes=many, at_ms=5)
    assert first.evidence[1].endswith(" and 774 more")


def hits_of(attempt: str, *names: str) -> dict[str, tuple[Hit, ...]]:
    nodes = dict.fromkeys(names, "m")
    found = events_of(f"{HEAD}it hung", attempt=attempt, nodes=nodes, at_ms=5)
    return {event.node: (hit_of(event),) for event in found}


def test_edges_in_doubt_are_those_within_a_gang_the_smallest_gang_first() -> None:
    hits = {**hits_of("1.0", "a", "b", "c"), **hits_of("2.0", "x", "y")}
    assert edges_in_doubt(hits) == (("x", "y"), ("a", "b"), ("a", "c"), ("b", "c"))
    assert edges_in_doubt({"a": hits["a"], "x": hits["x"]}) == ()
    many = hits_of("3.0", *(f"n{number:02}" for number in range(60)))
    assert len(edges_in_doubt({**many, **hits})) == EDGES_SEEN


def sums(*gangs: tuple[str, str, str]) -> dict[str, list[HealthEvent]]:
    """Let gangs fail one after the other: (attempt, owner, nodes), each node a letter. Return what each node has."""
    owners = {int(attempt.partition(".")[0]): owner for attempt, owner, _ in gangs}
    hits: dict[str, tuple[Hit, ...]] = {}
    events: dict[str, list[HealthEvent]] = {}
    for at_ms, (attempt, _, names) in enumerate(gangs, 5):
        found = events_of(
            f"{HEAD}it hung",
            attempt=attempt,
            nodes=dict.fromkeys(names, "m"),
            at_ms=at_ms,
            earlier=Earlier(hits, lambda run_id: owners.get(run_id, "")),
        )
        for event in found:
            events.setdefault(event.node, []).append(event)
            hits[event.node] = joined([*hits.get(event.node, ()), hit_of(event)], at_ms)
    return events


def points(*gangs: tuple[str, str, str]) -> dict[str, float]:
    return {node: score(joined(map(hit_of, each), 9)) for node, each in sums(*gangs).items()}


def test_a_node_in_two_gangs_that_have_nothing_else_in_common_is_a_suspect() -> None:
    found = points(("7.0", "ada", "abc"), ("8.0", "ada", "ade"))
    assert {node for node, each in found.items() if each >= SUSPECT_FROM} == {"a"}
    assert found["a"] == 2 * found["b"]


def test_a_gangs_retries_add_nothing() -> None:
    assert set(points(("7.0", "ada", "abc"), ("7.1", "ada", "abc"), ("7.2", "ada", "ade")).values()) == {2.0}
    again = points(("7.0", "ada", "abc"), ("8.0", "ada", "ade"), ("8.1", "ada", "ade"), ("9.0", "ada", "afg"))
    assert again["a"] == 4.0, "and a third gang is no more than a second"


@pytest.mark.parametrize(
    ("owner", "names", "adds"),
    [
        ("ada", "abc", False),  # the same program on the same nodes
        ("ada", "abd", False),  # a program that fails everywhere
        ("bob", "abc", False),  # which of the three it is nobody knows any better
        ("bob", "abd", True),
        ("", "abd", False),  # a run that is not known any more
        ("", "ade", True),
    ],
)
def test_gangs_with_more_in_common_add_only_where_owner_and_a_partner_are_others(
    owner: str, names: str, adds: bool
) -> None:
    assert (points(("7.0", "ada", "abc"), ("8.0", owner, names))["a"] == 4.0) is adds


def test_no_number_of_gangs_takes_a_node_out() -> None:
    many = [(f"{run}.0", f"user{run}", f"a{chr(98 + run)}") for run in range(20)]
    assert points(*many)["a"] < CORDON_FROM


def test_both_hints_lead_to_pair_tests() -> None:
    found = sums(("7.0", "ada", "abc"), ("8.0", "bob", "ade"))
    hits = {node: tuple(map(hit_of, each)) for node, each in found.items()}
    assert {hit.rule for hit in hits["a"]} == {"fabric.gang", "fabric.gang_again"}
    assert is_doubted(hits["a"][1:], 0)
    assert {("a", "d"), ("a", "e"), ("d", "e"), ("a", "b")} <= set(edges_in_doubt(hits))
