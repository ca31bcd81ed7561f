"""The JSON Schemas of a workload file and of yard.yaml, so that editors complete and check them.

Owns: the schema documents and their ids.
Must not know: rules between fields (an editor shows fewer complaints than `run --dry-run`).
"""

from __future__ import annotations

from typing import Any

from airyard.spec.models import WorkloadFile
from airyard.spec.yard_models import YardFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def workload_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12); every spelling is allowed, older ones are marked deprecated."""
    schema = WorkloadFile.model_json_schema(by_alias=True, mode="validation")
    _tidy(schema)
    return {
        "$schema": DIALECT,
        "$id": "urn:airyard:workload:1",
        **schema,
        "title": "Airyard workload",
    }


def yard_schema() -> dict[str, Any]:
    """Return the schema of yard.yaml (draft 2020-12)."""
    schema = YardFile.model_json_schema(by_alias=True, mode="validation")
    _tidy(schema)
    return {"$schema": DIALECT, "$id": "urn:airyard:yard:1", **schema, "title": "Airyard yard"}


def _tidy(node: Any) -> None:
    """Drop the titles pydantic invents, mark older spellings, keep our notes out."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
        return
    if not isinstance(node, dict):
        return
    if isinstance(node.get("title"), str):
        del node["title"]
    if node.pop("x-airyard-origin", None) == "older spelling":
        node["deprecated"] = True
    default = node.pop("x-airyard-default", None)
    if "default" in node and node["default"] is None:
        del node["default"]
    if default is not None and "description" in node:
        node["description"] += f" Default: {default}."
    for key, value in node.items():
        if key == "properties":
            for item in value.values():  # a property may itself be called "title"
                _tidy(item)
        else:
            _tidy(value)
