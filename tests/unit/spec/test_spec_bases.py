"""`_bases_`: order, depth, cycles with their chain, positions that name the right file."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.spec.load import load_text, load_workload
from airyard.spec.problems import WorkloadInvalid


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


COMMON = """\
experiment_name: common
compute: {accelerator_type: GPU_8xH100, num_accelerators: 8}
command: from common
env_variables: {A: common, B: common}
environment: {dependencies: [a, b]}
"""


def test_maps_merge_later_wins_lists_are_replaced(tmp_path: Path) -> None:
    write(
        tmp_path,
        common=COMMON,
        shared__big="_bases_: [../common.yaml]\ncompute: {num_accelerators: 16}\nenv_variables: {B: big}\n",
        w="_bases_: [shared/big.yaml]\nexperiment_name: mine\nenvironment: {dependencies: [c]}\n",
    )
    loaded = load_workload(tmp_path / "w.yaml")
    assert loaded.workload.experiment == "mine"
    assert loaded.workload.compute.nodes == 2
    assert dict(loaded.workload.env_variables) == {"A": "common", "B": "big"}
    assert loaded.workload.environment.dependencies == ("c",)
    assert "_bases_" not in loaded.source_yaml
    alone = load_text(loaded.source_yaml, folder=tmp_path / "elsewhere")
    assert alone.workload == loaded.workload


def test_bases_merge_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, a=COMMON, b="command: from b\n", w="_bases_: [a.yaml, b.yaml]\n")
    assert load_workload(tmp_path / "w.yaml").workload.command == "from b"


def test_an_empty_value_takes_a_base_away(tmp_path: Path) -> None:
    write(tmp_path, a=COMMON, w="_bases_: [a.yaml]\nenv_variables:\n")
    assert load_workload(tmp_path / "w.yaml").workload.env_variables == ()


def test_one_base_by_two_ways_is_no_cycle(tmp_path: Path) -> None:
    write(
        tmp_path, a=COMMON, b="_bases_: [a.yaml]\n", c="_bases_: [a.yaml]\n", w="_bases_: [b.yaml, c.yaml]\n"
    )
    assert load_workload(tmp_path / "w.yaml").workload.experiment == "common"


def test_a_cycle_shows_its_chain(tmp_path: Path) -> None:
    write(tmp_path, a="_bases_: [b.yaml]\n", b="_bases_: [a.yaml]\n", w=f"_bases_: [a.yaml]\n{COMMON}")
    with pytest.raises(WorkloadInvalid, match=r"bases form a cycle: a.yaml → b.yaml → a.yaml") as caught:
        load_workload(tmp_path / "w.yaml")
    assert str(caught.value.problems[0].position) == "b.yaml:1:11"
    write(tmp_path, self=f"_bases_: [self.yaml]\n{COMMON}")
    with pytest.raises(WorkloadInvalid, match=r"self.yaml → self.yaml"):
        load_workload(tmp_path / "self.yaml")


def test_problems_name_the_file_they_came_from(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=COMMON + "max_retires: 3\n",
        w="_bases_: [a.yaml]\ncompute: {num_accelerators: 12}\n",
    )
    with pytest.raises(WorkloadInvalid) as caught:
        load_workload(tmp_path / "w.yaml")
    places = [str(problem.position) for problem in caught.value.problems]
    assert places == [f"{tmp_path}/w.yaml:2:11", "a.yaml:6:1"]


@pytest.mark.parametrize(
    ("bases", "words"),
    [
        ("a.yaml", "expected a list of paths"),
        ("[1]", "expected a list of paths"),
        ("[none.yaml]", "cannot read the base none.yaml: No such file"),
        ("[bad.yaml]", "expected ',' or ']'"),
        ("[list.yaml]", "the top level must be a map"),
    ],
)
def test_bases_that_cannot_be_used(bases: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, a=COMMON, bad="a: [1\nb: 2\n", list="- 1\n", w=f"_bases_: {bases}\n{COMMON}")
    with pytest.raises(WorkloadInvalid) as caught:
        load_workload(tmp_path / "w.yaml")
    assert words in caught.value.message
