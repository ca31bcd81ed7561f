"""Other people's programs to measure against, each in a temporary virtual environment of its own.

Owns: making such an environment. Must not know: what is measured.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.yards import bare_environment

INSTALL_LIMIT_S = 300


def find_uv() -> str | None:
    """Return uv: the one beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def peer_python(folder: Path, packages: Sequence[str]) -> Path | None:
    """Install exact versions into a new virtual environment; None, with the reason printed, when it cannot be."""
    uv = find_uv()
    if uv is None:
        print(f"skipped {', '.join(packages)}: uv is not there")
        return None
    python = folder / "bin" / "python"
    commands = [
        [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *packages],
    ]
    for command in commands:
        try:
            subprocess.run(
                command,
                check=True,
                timeout=INSTALL_LIMIT_S,
                capture_output=True,
                text=True,
                env=bare_environment(),
            )
        except subprocess.CalledProcessError as error:
            print(f"skipped {', '.join(packages)}: {error.stderr.strip()[-500:]}")
            return None
        except subprocess.TimeoutExpired:
            print(f"skipped {', '.join(packages)}: not installed within {INSTALL_LIMIT_S} s")
            return None
    return python
