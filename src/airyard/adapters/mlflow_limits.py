"""Fit names and values into what MLflow's REST accepts, visibly.

Owns: the limits and the cutting. Must not know: HTTP. What is changed is named in a tag, so that nobody takes
a cut value for the whole one.

Source: MLflow 3.17 ``utils/validation.py``: 100 parameters, 100 tags, 1000 metrics and 1,000,000 characters a
batch; keys 250, parameter values 6000, tag values 8000 characters; a key must equal its own normalised path.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from airyard.ports.tracker import Pairs

PARAMS_PER_BATCH = 100
TAGS_PER_BATCH = 100
METRICS_PER_BATCH = 1000
BATCH_CHARACTERS = 900_000
KEY_CHARACTERS = 250
PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 8000
CHANGED_TAG = "airyard.tracking_changed"

_CUT = "… [cut]"
_FORBIDDEN = re.compile(r"[^\w.\- :/]")


def fit_key(key: str) -> str:
    """Return ``key`` as MLflow accepts it: unchanged where possible, at most 250 characters."""
    clean = _FORBIDDEN.sub("_", key) or "_"
    normal = posixpath.normpath(clean).lstrip("/")
    if normal == "." or normal.startswith(".."):
        normal = "_" + normal.lstrip("./")
    return normal[:KEY_CHARACTERS].rstrip("/")


def fit_pairs(pairs: Pairs, value_characters: int) -> tuple[Pairs, tuple[str, ...]]:
    """Fit names and values; a later pair of the same name wins. Returns the pairs and a note per change."""
    fitted: dict[str, str] = {}
    notes: list[str] = []
    for key, value in dict(pairs).items():
        name = _free_name(fit_key(key), fitted)
        if name != key:
            notes.append(f"{key[:80]} is stored as {name[:80]}")
        if len(value) > value_characters:
            notes.append(f"{name[:80]} was cut from {len(value)} to {value_characters} characters")
        fitted[name] = _cut(value, value_characters)
    return tuple(fitted.items()), tuple(notes)


def _cut(value: str, characters: int) -> str:
    return value if len(value) <= characters else value[: characters - len(_CUT)] + _CUT


def _free_name(name: str, taken: dict[str, str]) -> str:
    if name not in taken:
        return name
    number = 2
    while (free := f"{name[: KEY_CHARACTERS - 6]}_{number}") in taken:
        number += 1
    return free


def fit_run(params: Pairs, tags: Pairs) -> tuple[Pairs, Pairs]:
    """Fit the parameters and tags of a run; what was changed is told in ``airyard.tracking_changed``."""
    fitted_params, param_notes = fit_pairs(params, PARAM_CHARACTERS)
    fitted_tags, tag_notes = fit_pairs(tags, TAG_CHARACTERS)
    notes = [f"parameter {note}" for note in param_notes] + [f"tag {note}" for note in tag_notes]
    if notes:
        fitted_tags = (*fitted_tags, (CHANGED_TAG, _cut("; ".join(notes), TAG_CHARACTERS)))
    return fitted_params, fitted_tags


def batches(items: Sequence[dict[str, Any]], count: int) -> Iterator[list[dict[str, Any]]]:
    """Split request items into lists of at most ``count`` and 900,000 JSON characters."""
    batch: list[dict[str, Any]] = []
    characters = 0
    for item in items:
        size = len(json.dumps(item, ensure_ascii=True)) + 2
        if batch and (len(batch) == count or characters + size > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(item)
        characters += size
    if batch:
        yield batch
