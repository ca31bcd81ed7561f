"""Whether the nodes of a gang are alike: who is odd, who is not to blame, and what their certificate is of."""

from __future__ import annotations

from airyard.core.health.gangs import are_whole, certified, group_key, odd_ones, rank_owners


def facts(node: str, **more: str) -> dict[str, str]:
    return {
        "node": node,
        "boot_id": f"boot-{node}",
        "driver": "570.1",
        "communication": "aa",
        "image": "",
        **more,
    }


def test_like_nodes_have_nothing_odd() -> None:
    assert list(odd_ones({0: facts("a"), 1: facts("b"), 2: facts("c")})) == []


def test_the_minority_is_odd_and_named_with_its_value() -> None:
    (odd,) = odd_ones({0: facts("a"), 1: facts("b", driver="575.9"), 2: facts("c")})
    assert (odd.fact, odd.check, odd.members, odd.tied) == ("driver", "card.driver", {1}, False)
    assert odd.message == "the driver is 575.9, on node a 570.1"
    assert odd.next_step


def test_nobody_is_odd_in_a_tie() -> None:
    (odd,) = odd_ones({0: facts("a"), 1: facts("b", communication="bb")})
    assert (odd.members, odd.tied) == (frozenset(), True)
    assert "node a" in odd.message
    assert "node b" in odd.message


def test_a_node_counts_once_however_many_members_it_has() -> None:
    """Two members of one odd node are no majority over one member of each of two others."""
    odd_node = facts("b", driver="575.9")
    (odd,) = odd_ones({0: facts("a"), 1: odd_node, 2: odd_node, 3: facts("c")})
    assert odd.members == {1, 2}


def test_what_one_node_does_not_tell_is_not_compared() -> None:
    assert list(odd_ones({0: facts("a", driver=""), 1: facts("b"), 2: facts("c", driver="575.9")})) == []


def test_a_certificate_is_of_these_nodes_in_this_boot_only() -> None:
    gang = {0: facts("a"), 1: facts("b")}
    key = group_key(gang, "1")
    assert key == group_key({0: facts("b"), 1: facts("a")}, "1")
    assert key == group_key({0: facts("a"), 1: facts("b"), 2: facts("b")}, "1")
    for other in (
        {0: facts("a"), 1: facts("b", boot_id="later")},
        {0: facts("a"), 1: facts("c")},
        {0: facts("a"), 1: facts("b", driver="575.9")},
    ):
        assert group_key(other, "1") != key
    assert group_key(gang, "2") != key


def test_the_test_is_left_out_only_where_all_have_passed_it() -> None:
    gang = {0: facts("a", certified="k1 k2"), 1: facts("b", certified="k2")}
    assert certified(gang, "k2")
    assert not certified(gang, "k1")
    assert not certified({0: facts("a")}, "")


def test_each_gpu_has_a_rank_unless_some_member_does_not_tell_of_its_own() -> None:
    assert rank_owners({0: facts("a", ranks="2"), 1: facts("b", ranks="3")}) == (0, 0, 1, 1, 1)
    for odd in ("", "0", "-1", "65", "many"):
        assert rank_owners({0: facts("a", ranks="2"), 1: facts("b", ranks=odd)}) == (0, 1)
    assert rank_owners({0: facts("a", ranks="2"), 1: facts("b")}) == (0, 1)


def test_a_sum_over_some_gpus_of_a_node_says_nothing_of_its_others() -> None:
    some, others = ({0: facts("a", gpus=gpus), 1: facts("b", gpus="bb")} for gpus in ("aa", "cc"))
    assert group_key(some, "1") != group_key(others, "1")
    assert are_whole({0: facts("a", whole="1"), 1: facts("b", whole="1")})
    assert not are_whole({0: facts("a", whole="1"), 1: facts("b")})
