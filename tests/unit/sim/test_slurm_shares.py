"""Projects of accounts, and priority classes of QOS."""

from __future__ import annotations

import pytest

from airyard.core.errors import UserError
from airyard.core.workload import Priority
from airyard.sim.slurm.associations import read_projects
from airyard.sim.slurm.qos import read_qos
from airyard.sim.trace.records import TraceProject
from airyard.sim.trace.tally import Tally
from slurm_samples import ASSOCIATIONS, QOS, counts


def projects(text: str) -> dict[str, TraceProject]:
    """Read associations into projects by name."""
    return {project.name: project for project in read_projects(text.splitlines(), "assoc.txt", Tally())}


def accounts(*rows: str) -> str:
    """Return associations with these rows of Account|ParentName|User|Partition|Share|GrpTRES."""
    return "\n".join(["Account|ParentName|User|Partition|Share|GrpTRES", *rows])


def test_weights_are_effective_shares() -> None:
    # Of research, nlp has 30 parts and the users of vision, whose share is its parent's, one each.
    found = projects(ASSOCIATIONS)
    assert set(found) == {"nlp", "vision"}
    assert found["nlp"].weight == pytest.approx(15 * found["vision"].weight)
    assert found["nlp"].weight + found["vision"].weight == pytest.approx(2)


def test_ceilings_are_the_least_on_the_way_up() -> None:
    found = projects(ASSOCIATIONS)
    assert (found["nlp"].ceiling, found["vision"].ceiling) == (16, 24)
    assert (found["nlp"].user_ceiling, found["vision"].user_ceiling) == (8, None)
    assert found["nlp"].guarantee is None


def test_what_a_flat_list_loses_is_counted() -> None:
    tally = Tally()
    more = "\nyard|nlp||ann|long|5|gres/gpu=2\nyard|vision||fay||1|gres/gpu=1\nyard|law|root|||4|gres/gpu:h100=4\n"
    read_projects((ASSOCIATIONS + more.strip()).splitlines(), "assoc.txt", tally)
    assert counts(tally.records()) == {
        "account-tree": 2,
        "shared-ceilings": 1,
        "typed-ceilings": 1,
        "user-shares": 1,
        "user-ceilings": 2,
        "limits": 1,
    }


def test_other_limits_are_named() -> None:
    tally = Tally()
    text = "Account|User|Share|GrpTRES|MaxJobs|MaxWall\nnlp||1|gres/gpu=-1|20|\nnlp|ann|1|||1-00:00:00\n"
    (project,) = read_projects(text.splitlines(), "assoc.txt", tally)
    assert project.ceiling is None
    (left,) = tally.records()
    assert (left.what, left.count) == ("limits", 2)
    assert "nlp MaxJobs" in left.why
    assert "nlp/ann MaxWall" in left.why


def test_the_tree_may_be_drawn_by_indentation() -> None:
    lines = [
        "root||1",
        " root|root|1",
        " research||10",
        "  nlp||30",
        "   nlp|ann|1",
        "  law||10",
        "   law|bob|1",
    ]
    found = projects("\n".join(["Account|User|Share", *lines]))
    assert found["nlp"].weight == pytest.approx(3 * found["law"].weight)


def test_an_account_without_a_share_still_gets_something() -> None:
    found = projects(accounts("nlp||||0|", "nlp||ann||1|", "law||||9|", "law||bob||1|"))
    assert found["nlp"].weight == 0.001


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "assoc.txt: is empty"),
        ("User|Def Acct\nann|nlp", "has no header with Account and User"),
        ("Account|User\nnlp|", "lacks the column Share or Fairshare"),
        (accounts(), "has no account"),
        (accounts("nlp||||-3|"), "line 2, column Share: found '-3'"),
        (accounts("nlp||||1|gpus"), "line 2, column GrpTRES: found 'gpus'"),
        (
            accounts("nlp||||1|", "nlp||||1|"),
            "line 3, column Account: names account nlp again (first in line 2)",
        ),
        (accounts("nlp||||1|", "law||ann||1|"), "names a user of account law, which has no line"),
        (accounts("a|b|||1|", "b|a|||1|"), "puts account a into a circle"),
        ("Cluster|Account|User|Share\nx|nlp||1\ny|nlp||1", "is of several clusters: x, y"),
    ],
)
def test_what_is_no_output_of_sacctmgr_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        projects(text)
    assert expected in caught.value.message
    assert caught.value.message.startswith("assoc.txt")


def test_a_deep_chain_of_accounts_is_refused() -> None:
    rows = [f"a{level}|a{level - 1}|||1|" for level in range(1, 5000)]
    with pytest.raises(UserError, match="levels deep"):
        projects(accounts("a0||||1|", *rows))


def test_classes_follow_the_right_to_preempt() -> None:
    tally = Tally()
    assert read_qos(QOS.splitlines(), "qos.txt", tally) == {
        "normal": Priority.NORMAL,
        "urgent": Priority.CRITICAL,
        "scavenger": Priority.BEST_EFFORT,
    }
    assert counts(tally.records()) == {"qos-limits": 2}


def test_with_two_ranks_the_lower_one_is_best_effort() -> None:
    text = "Name|Priority|Preempt\nnormal|10|spare\nspare|0|\nlong|10|\n"
    assert read_qos(text.splitlines(), "qos.txt", Tally()) == {
        "normal": Priority.NORMAL,
        "spare": Priority.BEST_EFFORT,
        "long": Priority.NORMAL,
    }


def test_without_rights_all_are_normal() -> None:
    text = "Name|Priority|Preempt\nhigh|10|\nlow|1|\n"
    assert set(read_qos(text.splitlines(), "qos.txt", Tally()).values()) == {Priority.NORMAL}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Name|Priority\nnormal|1", "has no header with Name and Preempt"),
        ("Name|Priority|Preempt\nnormal|high|", "line 2, column Priority: found 'high'"),
        ("Name|Priority|Preempt\nnormal|1|\nNormal|2|", "line 3, column Name: names QOS normal again"),
        ("Name|Priority|Preempt\n|1|", "line 2, column Name: found ''"),
    ],
)
def test_what_is_no_list_of_qos_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read_qos(text.splitlines(), "qos.txt", Tally())
    assert expected in caught.value.message
