"""Which software a machine may bring into a fleet."""

from __future__ import annotations

import pytest

import airyard
from airyard.adapters import ray_command
from airyard.core.errors import Conflict
from airyard.server.join_versions import check_versions
from older_release import other_version

OURS = {
    "version": airyard.__version__,
    "ray": ray_command.RAY_VERSION,
    "python": ray_command.python_version(),
}


def test_the_release_before_may_join() -> None:
    check_versions("h1", **OURS)
    check_versions("h1", **{**OURS, "version": other_version(-1)})


@pytest.mark.parametrize(
    ("change", "said", "step"),
    [
        ({"version": other_version(1)}, other_version(1), "upgrade the server to"),
        ({"version": other_version(-2)}, other_version(-2), "upgrade h1 to"),
        ({"version": other_version(-1), "ray": "1.0.0"}, "Ray 1.0.0 there", "install the server's versions on h1: Ray"),
        ({"python": "3.9.1"}, "Python 3.9.1 there", "install the server's versions on h1: Python"),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_both_and_what_to_do(change: dict[str, str], said: str, step: str) -> None:
    with pytest.raises(Conflict) as refused:
        check_versions("h1", **{**OURS, **change})
    assert refused.value.code == "VERSION_MISMATCH"
    assert said in refused.value.message
    assert "Airyard" not in refused.value.message or airyard.__version__ in refused.value.message
    assert refused.value.fix is not None
    assert step in refused.value.fix.text
