"""The names of runs that do not exist yet: stable, apart, in forms that MLflow's client takes."""

from __future__ import annotations

import re

from airyard.core.tracking_alias import TrackedIds, alias_of


def test_an_alias_is_stable_and_unlike_any_other() -> None:
    assert alias_of("yard-1", "12.0") == alias_of("yard-1", "12.0")
    every = [alias_of(yard, f"{run}.{attempt}") for yard in "ab" for run in range(40) for attempt in range(3)]
    assert len({alias.run_id for alias in every}) == len(every)
    assert len({alias.experiment_id for alias in every}) == len(every)
    assert all(re.fullmatch(r"[0-9a-f]{32}", alias.run_id) for alias in every)
    assert all(re.fullmatch(r"[1-9][0-9]{17}", alias.experiment_id) for alias in every)


def test_the_real_ids_take_its_place_wherever_it_stands() -> None:
    alias = alias_of("yard-1", "12.0")
    real = TrackedIds(run_id="a" * 32, experiment_id="7")
    body = f'{{"experiment_ids": ["{alias.experiment_id}"], "filter": "x = \'{alias.run_id}\'"}}'.encode()
    assert alias.named_in(body)
    replaced = alias.replaced_in(body, real)
    assert replaced == b'{"experiment_ids": ["7"], "filter": "x = \'' + b"a" * 32 + b"'\"}"
    assert not alias.named_in(replaced)
