"""A stand-in for NVML, compiled from C: the real binding runs over it, and a file says what the GPUs are like.

Owns: compiling it once, and writing its file. Must not know: who reads it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

SOURCE = Path(__file__).with_name("fake_nvml_driver.c")


@lru_cache(maxsize=1)
def compiled() -> Path | None:
    """Return the folder with ``libnvidia-ml.so.1``; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    folder = Path(mkdtemp(prefix="airyard-nvml-"))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpus:
    """GPUs as a file describes them: H100s in good health where it says nothing."""

    library: Path
    file: Path

    @property
    def environ(self) -> dict[str, str]:
        """What a process has to have to see these GPUs."""
        return {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML": str(self.file)}

    def set(self, **readings: int | str) -> None:
        """Replace the description; ``gpu3__temperature`` is of one device, ``error__nvmlInit_v2`` of a call."""
        text = "".join(f"{name.replace('__', '.')}={value}\n" for name, value in readings.items())
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.file)
