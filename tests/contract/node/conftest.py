"""A package index in a folder: tiny wheels made on the spot, and the pip that comes with the interpreter."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

SLOW_BACKEND = """
import os, time
META = "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n"
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    made = os.path.join(folder, "slow-1.0.dist-info")
    os.mkdir(made)
    open(os.path.join(made, "METADATA"), "w").write(META)
    open(os.path.join(made, "WHEEL"), "w").write("Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    return "slow-1.0.dist-info"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    time.sleep(600)
"""


def make_wheel(folder: Path, name: str, version: str, code: str, *, padding_bytes: int = 0) -> Path:
    """Write a pure wheel with one module and a console script of the same name."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code.encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-cli = {name}:main\n".encode(),
    }
    if padding_bytes:
        files[f"{name}.bin"] = bytes(padding_bytes)
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def make_slow_source(folder: Path) -> None:
    """Write a source package whose build never ends."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": SLOW_BACKEND,
        "PKG-INFO": "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n",
    }
    with tarfile.open(folder / "slow-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"slow-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder; it holds ``tool`` 1.0, ``tool`` 2.0, ``big`` 1.0 (8 MiB), ``slow`` 1.0 and pip."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        make_wheel(folder, "tool", version, f"VALUE = {version!r}\ndef main():\n    print('tool', VALUE)\n")
    make_wheel(folder, "big", "1.0", "def main(): pass\n", padding_bytes=8 * 1024 * 1024)
    make_slow_source(folder)
    bundled = list(Path(sysconfig.get_path("stdlib"), "ensurepip", "_bundled").glob("pip-*.whl"))
    if not bundled:
        pytest.skip("the interpreter comes without a bundled pip")
    shutil.copy(bundled[0], folder)
    return folder
