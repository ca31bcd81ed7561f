"""Each dependency has its reason in docs/dependencies.md and its hash in the lock files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)

CLIENT: list[str] = PROJECT["project"]["dependencies"]
SERVER: list[str] = PROJECT["project"]["optional-dependencies"]["server"]
OPTIONAL: list[str] = [
    requirement
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items()
    if extra != "server"
    for requirement in requirements
]
DEVELOPMENT: list[str] = PROJECT["dependency-groups"]["dev"]


def name_of(requirement: str) -> str:
    """Return the normalised project name of a requirement such as ``httpx>=0.28``."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def locked(lock: str) -> dict[str, str]:
    """Return {name: version} of one lock file."""
    return dict(LOCKED.findall(place_of(lock).read_text(encoding="utf-8")))


def place_of(lock: str) -> Path:
    """Return where a lock file is: that of a fleet's machines is carried to them, so it is in the package."""
    return ROOT / ("src/airyard/node/remote" if lock == "node.lock" else "requirements") / lock


def test_every_dependency_has_its_reason() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\|\s*`?([A-Za-z0-9][A-Za-z0-9._-]*)`?\s*\|", page, re.MULTILINE))
    wanted = {name_of(requirement) for requirement in [*CLIENT, *SERVER, *OPTIONAL, *DEVELOPMENT]}
    missing = sorted(wanted - rows)
    assert not missing, f"docs/dependencies.md has no row for: {', '.join(missing)}"
    stale = sorted(rows - wanted - {"library"})
    assert not stale, f"docs/dependencies.md has rows for what is no dependency: {', '.join(stale)}"


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [
        ("client.lock", CLIENT),
        ("server.lock", [*CLIENT, *SERVER]),
        ("dev.lock", [*CLIENT, *SERVER, *DEVELOPMENT]),
        ("node.lock", [*CLIENT, *SERVER, *PROJECT["project"]["optional-dependencies"]["ray"]]),
        ("bootstrap.lock", ["uv"]),
    ],
)
def test_the_lock_files_hold_what_pyproject_asks(lock: str, requirements: list[str]) -> None:
    versions = locked(lock)
    missing = sorted(
        name_of(requirement) for requirement in requirements if name_of(requirement) not in versions
    )
    assert not missing, f"requirements/{lock} lacks {', '.join(missing)}: run `make lock`"
    exact = dict(requirement.split("==") for requirement in requirements if "==" in requirement)
    assert {name: versions[name] for name in exact} == exact


@pytest.mark.parametrize("lock", ["client.lock", "server.lock", "node.lock", "bootstrap.lock"])
def test_every_lock_file_agrees_with_the_development_one(lock: str) -> None:
    development = locked("dev.lock")
    differing = {name: version for name, version in locked(lock).items() if development.get(name) != version}
    assert not differing, f"requirements/{lock} differs from dev.lock: run `make lock`"


def test_the_lock_files_stay_lean_and_anonymous() -> None:
    for path in [*sorted((ROOT / "requirements").glob("*.lock")), place_of("node.lock")]:
        text = path.read_text(encoding="utf-8")
        assert "://" not in text, f"{path.name} names a host"
        assert "torch" not in locked(path.name), (
            f"{path.name} holds torch: training libraries belong to the workloads"
        )
        unhashed = [
            name
            for name, _ in LOCKED.findall(text)
            if not re.search(rf"^{re.escape(name)}==.*\\\n\s+--hash", text, re.M)
        ]
        assert not unhashed, f"{path.name}: no hash for {unhashed}"
