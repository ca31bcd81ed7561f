"""Running a stored workload again: overrides are read by the same rules as the file, its code stays."""

from __future__ import annotations

import pytest

from airyard.core.errors import UserError
from airyard.sdk.submission import prepare_again
from airyard.spec.load import load_text

YAML = "experiment_name: again\ncompute: {accelerator_type: CPU}\ncommand: echo hi\nmax_retries: 2\n"
CODE = {"tree_hash": "ab" * 32, "directory_name": "app", "size_bytes": 1}


@pytest.fixture
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    workload = load_text(YAML, folder=tmp_path_factory.mktemp("yaml")).workload
    return {"workload": {**workload.to_json(), "code": CODE, "name": "first"}, "source_yaml": YAML}


def test_an_override_changes_its_field_and_nothing_else(source: dict[str, object]) -> None:
    workload, text = prepare_again(source, overrides=["max_retries=0"], tags={"k": "v"})
    assert (workload["max_retries"], workload["name"], workload["tags"]) == (0, "first", {"k": "v"})
    assert workload["code"]["tree_hash"] == CODE["tree_hash"]
    assert text is not None
    assert "max_retries: 0" in text


def test_the_code_of_the_first_run_cannot_be_overridden(source: dict[str, object]) -> None:
    with pytest.raises(UserError, match="uses the code of the first run"):
        prepare_again(source, overrides=["code_source.root_path=."])
