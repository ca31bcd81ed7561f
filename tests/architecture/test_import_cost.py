"""What a fresh interpreter loads for the programs that must start light: the runner and the command line."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

# Prints {module: is it third-party}, that is, does it lie in site-packages; this checkout does not.
PROBE = """
import json, sys, sysconfig
before = set(sys.modules)
import {module}
sites = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
loaded = {{
    name: str(getattr(module, "__file__", None) or "").startswith(sites)
    for name, module in list(sys.modules.items())
    if name not in before
}}
print(json.dumps(loaded))
"""

HEAVY = frozenset(
    {
        "alembic", "cryptography", "fastapi", "mlflow", "numpy", "pandas", "pydantic", "rich", "sqlalchemy",
        "starlette", "structlog", "uvicorn", "yaml",
    }
)  # fmt: skip


def loaded_by(module: str) -> dict[str, bool]:
    """Return what importing ``module`` adds in a fresh interpreter: {module: is it third-party}."""
    try:
        present = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        present = False
    if not present:
        pytest.skip(f"{module} does not exist yet")
    probe = PROBE.format(module=module)
    done = subprocess.run([sys.executable, "-I", "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, bool] = json.loads(done.stdout)
    return result


def inside(name: str, *packages: str) -> bool:
    """Say whether the module is one of the packages or lies in one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("module", ["airyard.node.runner", "airyard.node.zygote"])
def test_the_runner_loads_the_standard_library_core_and_node_only(module: str) -> None:
    loaded = loaded_by(module)
    third_party = sorted(name for name, is_third_party in loaded.items() if is_third_party)
    assert not third_party, f"{module} loads third-party code: {', '.join(third_party)}"
    foreign = sorted(
        name
        for name in loaded
        if inside(name, "airyard")
        and name != "airyard"
        # The runner reads what user code writes by airyard.steps, which stands alone and has the layout of its files.
        and not inside(name, "airyard.core", "airyard.node", "airyard.steps")
    )
    assert not foreign, f"{module} loads rooms it may not: {', '.join(foreign)}"


def test_the_command_line_starts_light() -> None:
    loaded = loaded_by("airyard.cli.main")
    heavy = sorted({name.split(".")[0] for name in loaded} & HEAVY)
    assert not heavy, f"airyard.cli.main loads {', '.join(heavy)} before it knows which verb runs"
    server_side = sorted(
        name
        for name in loaded
        if inside(name, "airyard.server", "airyard.app", "airyard.adapters", "airyard.node", "airyard.sim")
    )
    assert not server_side, f"airyard.cli.main loads server code: {', '.join(server_side)}"
