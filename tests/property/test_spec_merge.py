"""Properties of merging, overriding and the normal form, over generated files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.workload import Workload, first_difference
from airyard.spec.bases import deep_merge, merge_documents
from airyard.spec.document import parse_document
from airyard.spec.load import load_text
from airyard.spec.problems import Problem, WorkloadInvalid, near_miss

KEYS = st.text("abcd", min_size=1, max_size=2)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("xyz", max_size=3))
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
TREES = st.dictionaries(KEYS, VALUES, max_size=4)


def paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    out = {path}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        out |= paths(below, (*path, key))
    return out


@given(TREES, TREES)
def test_merge_keeps_all_keys_and_the_later_values(under: dict[str, Any], over: dict[str, Any]) -> None:
    merged = deep_merge(under, over)
    assert set(merged) == set(under) | set(over)
    assert deep_merge(merged, over) == merged
    assert deep_merge(under, {}) == under
    assert deep_merge({}, over) == over
    for key, value in over.items():
        if not isinstance(value, dict) or not isinstance(under.get(key), dict):
            assert merged[key] == value
    for key in set(under) - set(over):
        assert merged[key] == under[key]


@given(TREES, TREES)
@settings(max_examples=60)
def test_merged_documents_know_every_place_and_no_other(under: dict[str, Any], over: dict[str, Any]) -> None:
    first, no_problems = parse_document(yaml.safe_dump(under), file="under")
    second, none_either = parse_document(yaml.safe_dump(over), file="over")
    assert no_problems == none_either == []
    assert (first.data, second.data) == (under, over)
    merged = merge_documents(first, second)
    assert set(merged.positions) == paths(merged.data)
    for path, position in merged.positions.items():
        assert position == (second if path in second.positions else first).positions[path]


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.lists(KEYS, min_size=1, max_size=3), LEAVES)
@settings(max_examples=60)
def test_an_override_sets_its_value_and_nothing_else(
    tree: dict[str, Any], keys: list[str], value: Any
) -> None:
    text = yaml.safe_dump(
        {"experiment_name": "e", "command": "c", "compute": {"accelerator_type": "CPU"}, "parameters": tree}
    )
    target: Any = tree
    for key in keys[:-1]:
        target = target.get(key, {}) if isinstance(target, dict) else target
        if isinstance(target, list):
            return  # a list takes indexes, tested elsewhere
    if isinstance(target, list):
        return
    written = yaml.safe_dump(value).removesuffix("\n...\n").strip()
    override = f"parameters.{'.'.join(keys)}={written}"
    result = load_text(text, folder=Path("unused"), overrides=[override]).workload.parameters
    assert result is not None
    expected: Any = value
    for key in reversed(keys):
        expected = {key: expected}
    reached: Any = result
    for key in keys:
        reached = reached[key]
    assert reached == value
    assert {key: below for key, below in result.items() if key != keys[0]} == {
        key: below for key, below in tree.items() if key != keys[0]
    }


NAMES = st.text("abcXYZ019_-", min_size=1, max_size=20)
VARIABLES = st.dictionaries(st.from_regex(r"U_[A-Z0-9_]{1,8}", fullmatch=True), st.text(max_size=20).filter(
    lambda text: "\0" not in text and "{{" not in text), max_size=3)  # fmt: skip
FILES = st.fixed_dictionaries(
    {
        "experiment_name": NAMES,
        "compute": st.one_of(
            st.builds(
                lambda nodes: {"accelerator_type": "CPU", "num_accelerators": nodes}, st.integers(1, 9)
            ),
            st.builds(
                lambda per, nodes: {"accelerator_type": f"GPU_{per}xH100", "num_accelerators": per * nodes},
                st.integers(1, 16),
                st.integers(1, 9),
            ),
        ),
        "command": st.text(min_size=1, max_size=40).filter(
            lambda text: bool(text.strip()) and "\0" not in text
        ),
    },
    optional={
        "env_variables": VARIABLES,
        "parameters": TREES,
        "max_retries": st.integers(0, 99),
        "timeout_minutes": st.integers(1, 10_000),
        "tags": st.dictionaries(NAMES.map("t{}".format), st.text("abc", max_size=5), max_size=3),
        "tracking": st.booleans(),
        "preemption": st.fixed_dictionaries(
            {"grace_seconds": st.integers(0, 3600)},
            optional={"max_loss": st.integers(1, 99).map("{}m".format)},
        ),
    },
)


@given(FILES)
@settings(max_examples=80)
def test_the_normal_form_survives_json_and_its_own_yaml(fields: dict[str, Any]) -> None:
    text = yaml.safe_dump(fields, allow_unicode=True)
    loaded = load_text(text, folder=Path("unused"))
    workload = loaded.workload
    again = Workload.from_json(json.loads(json.dumps(workload.to_json())))
    assert again == workload
    assert hash(again) == hash(workload)
    assert again.spec_hash() == workload.spec_hash()
    assert first_difference(again, workload) is None
    derived = load_text(text, folder=Path("unused"), overrides=[f"max_retries={workload.max_retries}"])
    assert derived.workload == workload
    assert load_text(derived.source_yaml, folder=Path("unused")).workload == workload
    assert workload.compute.num_accelerators == fields["compute"]["num_accelerators"]


@given(st.text("abcde_", min_size=4, max_size=12), st.integers(0, 11), st.sampled_from("abcxyz"))
def test_one_wrong_letter_is_always_a_near_miss(word: str, place: int, letter: str) -> None:
    place %= len(word)
    misspelled = word[:place] + letter + word[place + 1 :]
    assert misspelled == word or near_miss(misspelled, [word, "something_else_entirely"]) == word


@given(st.text(max_size=200))
@settings(max_examples=200)
def test_any_text_parses_or_is_a_problem_with_a_place(text: str) -> None:
    document, problems = parse_document(text, file="w.yaml")
    assert isinstance(document.data, dict)
    assert all(problem.position.line >= 1 for problem in problems)


EVERY_FIELD: dict[str, Any] = {
    "experiment_name": "e",
    "compute": {"accelerator_type": "CPU", "num_accelerators": 2, "memory": "1GiB", "pool_id": "p"},
    "containers": [
        {"name": "a", "command": "c", "ranks": [0, 1], "environment_variables": {"variables": {"A": "b"}}}
    ],
    "environment": {
        "version": 6,
        "dependencies": ["a"],
        "secrets": {"S": "a/b"},
    },
    "code_source": {
        "type": "snapshot",
        "snapshot": {"root_path": ".", "git": {"commit": "a"}, "include_paths": ["a"]},
    },
    "parameters": {"a": 1},
    "env_variables": {"E": "x"},
    "tags": {"t": "u"},
    "permissions": [{"user_name": "a", "level": "CAN_VIEW"}],
    "timeouts": {"queue": "1m"},
    "preemption": {"signal": "SIGINT"},
    "priority": "NORMAL",
    "max_retries": 1,
}
ODD = st.one_of(
    VALUES,
    st.floats(),
    st.sampled_from(["", " ", "\0", "$X", "a/b", "-r x", "{{secrets/a", "GPU_1x", "1e5", "~", "//"]),
)


@given(st.sampled_from(sorted(paths(EVERY_FIELD) - {()}, key=str)), ODD)
@settings(max_examples=400)
def test_whatever_stands_in_a_field_is_read_or_is_a_problem(path: tuple[str | int, ...], value: Any) -> None:
    fields = json.loads(json.dumps(EVERY_FIELD))
    parent: Any = fields
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = value
    problems: tuple[Problem, ...] = ()
    try:
        load_text(yaml.safe_dump(fields), folder=Path("unused"), check_code=False)
    except WorkloadInvalid as error:
        problems = error.problems
        json.dumps(error.as_json(), allow_nan=False)
    assert all(problem.message and problem.position.line >= 1 for problem in problems)


def test_the_file_that_is_varied_is_a_good_one() -> None:
    assert load_text(yaml.safe_dump(EVERY_FIELD), folder=Path("unused"), check_code=False).workload.roles
