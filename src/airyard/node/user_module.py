"""Makes ``from airyard import checkpoint`` work in a member's environment, where Airyard is normally not installed.

Owns: which files of ours user code gets, and where they lie. Must not know: what is in them.

They lie in a folder of their own that a ``.pth`` file appends to the *end* of ``sys.path``, so an airyard that the user
installed goes first, and nothing depends on a PYTHONPATH that commands like to replace. An interpreter from outside of
the environment does not see them.
"""

from __future__ import annotations

from pathlib import Path

import airyard

_FOLDER = "zz-airyard"
"""Sorts last among the ``.pth`` files, and is no name that could be imported."""
_MODULES = ("checkpoint.py", "steps.py")
_FORWARD = """
def __getattr__(name):
    if name in ("step", "compute", "section"):
        from airyard import steps

        return getattr(steps, name)
    raise AttributeError(f"module 'airyard' has no attribute {name!r}")
""".lstrip()


def add_user_module(environment: Path, layer: Path) -> None:
    """Put the files into ``layer`` where an interpreter of ``environment`` finds them.

    ``layer`` mirrors the environment's tree: it is a view of it, or the upper layer of one. Raises: OSError.
    """
    ours = Path(airyard.__file__).parent
    first_lines = (
        '"""What of Airyard user code finds without installing it: `checkpoint`, `step` and its kin."""\n\n'
        f"__version__ = {airyard.__version__!r}\n\n{_FORWARD}"
    )
    for site in environment.glob("lib/python*/site-packages"):
        target = layer / site.relative_to(environment)
        package = target / _FOLDER / "airyard"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(first_lines, encoding="utf-8")
        for name in _MODULES:
            (package / name).write_bytes((ours / name).read_bytes())
        (target / f"{_FOLDER}.pth").write_text(f"{_FOLDER}\n", encoding="ascii")
