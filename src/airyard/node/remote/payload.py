"""What is carried to a host: this very Airyard as a wheel, the lock file of what it needs, uv, wheels for the offline.

Owns: making the wheel out of what runs here, the archive. Must not know: hosts, SSH.

The wheel is made from the installed files, so that it is this version wherever it came from: an index, a checkout, a
checkout with changes. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import platform
import queue
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import airyard
from airyard.core.errors import UserError
from airyard.node.uv import find_uv

LOCK = Path(__file__).with_name("node.lock")
"""What ``airyard[server,ray]`` needs, with hashes; ``make lock`` writes it."""
EPOCH = (1980, 1, 1, 0, 0, 0)
_METADATA = ("METADATA", "entry_points.txt")
_PIECE = 1 << 20
_PIECES_WAITING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The files to carry, by their names there; ``digest`` changes with the wheel or the lock file."""

    wheel_name: str
    digest: str
    texts: dict[str, bytes]
    files: dict[str, Path]


def make(wheelhouse: Path | None) -> Payload:
    """Gather what a host needs. Raises: UserError for a wheelhouse without wheels."""
    name, wheel = make_wheel()
    lock = LOCK.read_bytes()
    files: dict[str, Path] = {}
    if wheelhouse is not None:
        files = {f"wheelhouse/{path.name}": path for path in sorted(wheelhouse.glob("*.whl"))}
        if not files:
            raise UserError(
                f"{wheelhouse} holds no wheels.",
                code="NO_WHEELS",
                fix="Fill it where there is an index: `airyard fleet lock > node.lock`, then "
                "`pip download --require-hashes --only-binary :all: -r node.lock -d DIR`.",
            )
    return Payload(
        wheel_name=name,
        digest=hashlib.sha256(wheel + lock).hexdigest()[:12],
        texts={name: wheel, "node.lock": lock},
        files=files,
    )


def make_wheel() -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel of the Airyard that runs here."""
    package = Path(airyard.__file__).parent
    files = {
        f"airyard/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    info = f"airyard-{airyard.__version__}.dist-info"
    files |= {f"{info}/{name}": text.encode() for name, text in _metadata(distribution("airyard")).items()}
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: airyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{name},{_hash(data)},{len(data)}\n" for name, data in sorted(files.items()))
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return f"airyard-{airyard.__version__}-py3-none-any.whl", out.getvalue()


def _metadata(installed: Distribution) -> dict[str, str]:
    return {name: text for name in _METADATA if (text := installed.read_text(name)) is not None}


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def own_uv(os: str, arch: str) -> Path | None:
    """Return the uv that is installed here, if it runs on a machine of that kind; a host needs no other tool then."""
    if (platform.system(), platform.machine()) != (os, arch):
        return None
    try:
        return find_uv()
    except Exception:  # without it, pip does
        return None


def archive(payload: Payload, uv: Path | None) -> Iterator[bytes]:
    """Yield the files as a tar.gz, piece by piece: wheels are hundreds of megabytes."""
    pieces: queue.Queue[bytes | None] = queue.Queue(_PIECES_WAITING)
    gone = threading.Event()

    class Pipe:
        def write(self, data: bytes) -> int:
            while not gone.is_set():
                try:
                    pieces.put(bytes(data), timeout=0.5)
                    return len(data)
                except queue.Full:
                    continue
            raise BrokenPipeError

    def pack() -> None:
        try:
            pipe: Any = Pipe()  # a stream is written to, and nothing else
            with (
                gzip.GzipFile(fileobj=pipe, mode="wb", compresslevel=1, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w|", bufsize=_PIECE) as out,
            ):
                for name, data in payload.texts.items():
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    out.addfile(entry, io.BytesIO(data))
                for name, path in payload.files.items():
                    out.add(path, name, recursive=False)
                if uv is not None:
                    out.add(uv, "uv", recursive=False)
        except OSError:
            pass
        finally:
            if not gone.is_set():
                pieces.put(None)

    threading.Thread(target=pack, daemon=True).start()
    try:
        while (piece := pieces.get()) is not None:
            yield piece
    finally:
        gone.set()
