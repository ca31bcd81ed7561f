"""Keeps what a machine says of itself at the time of a fault: ``python -m airyard.checks.evidence FOLDER [ROOT]``.

Owns: which files a bundle has, and reading them. Must not know: why it is taken, what a reading means, how many bundles
are kept. A reset or a reboot takes all of this away. Each part is written by itself, what may hang last: whoever starts
this program kills it at a deadline, and what was written until then is there.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from airyard.checks import nvml
from airyard.checks.contract import text_of

_RECORD = 8192
_MOST_LOG = 16 << 20
_SMI_S = 30.0
_DIE_WITH_PARENT = 1
_WAITS_IN_KERNEL = "D"
_SMALL = ("/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/mounts", "/proc/driver/nvidia/version")
_PORTS = ("state", "phys_state", "rate")


def kernel_log(root: Path, file: BinaryIO) -> None:
    """Write all that the kernel has kept of its log, as ``/dev/kmsg`` has it. Raises: OSError."""
    descriptor = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    taken = 0
    try:
        while taken < _MOST_LOG:
            try:
                record = os.read(descriptor, _RECORD)
            except BrokenPipeError:
                continue  # it was overwritten while it was read
            except BlockingIOError:
                return
            if not record:
                return
            taken += len(record)
            file.write(record)
    finally:
        os.close(descriptor)


def machine(root: Path, file: BinaryIO) -> None:
    """Write what /proc says of the machine."""
    for path in _SMALL:
        text = text_of(root / path.lstrip("/"))
        file.write(f"== {path}\n{text}\n".encode())


def processes(root: Path, file: BinaryIO) -> None:
    """Write those that wait in the kernel, each with where; and how many others there are."""
    others = 0
    for folder in sorted((root / "proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        name, _, rest = text_of(folder / "stat").partition("(")[2].rpartition(")")
        state = rest.split()[:1]
        if state != [_WAITS_IN_KERNEL]:
            others += 1
            continue
        command = text_of(folder / "cmdline").replace("\0", " ") or f"[{name}]"
        file.write(f"== {folder.name} {command[:300]}\nwaits in {text_of(folder / 'wchan')}\n".encode())
        file.write(text_of(folder / "stack").encode() + b"\n")
    file.write(f"{others} other processes\n".encode())


def ports(root: Path, file: BinaryIO) -> None:
    """Write state and counters of every RDMA port."""
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        file.write(f"== {folder.parent.parent.name}/{folder.name}\n".encode())
        for path in (*(folder / name for name in _PORTS), *sorted(folder.glob("*counters/*"))):
            file.write(f"{path.name} {text_of(path)}\n".encode())


def pci_errors(root: Path, file: BinaryIO) -> None:
    """Write the error counters and links of the PCI devices that keep any."""
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        counters = sorted(device.glob("aer_dev_*"))
        if counters:
            link = f"{text_of(device / 'current_link_speed')} x{text_of(device / 'current_link_width')}"
            file.write(f"== {device.name} {text_of(device / 'vendor')} {link}\n".encode())
        for path in counters:
            file.write(f"{path.name}\n{text_of(path)}\n".encode())


def gpus(root: Path, file: BinaryIO) -> None:
    """Write what NVML tells of all GPUs, as JSON. May hang with the driver."""
    file.write(json.dumps(asdict(nvml.read()), indent=1).encode())


def smi(root: Path, file: BinaryIO) -> None:
    """Write ``nvidia-smi -q``, where there is one. May hang with the driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    done = subprocess.run(
        [program, "-q"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_SMI_S,
        check=False,
    )
    file.write(done.stdout)


PARTS: tuple[tuple[str, Callable[[Path, BinaryIO], None]], ...] = (
    ("kernel.log", kernel_log),
    ("machine.txt", machine),
    ("processes.txt", processes),
    ("rdma.txt", ports),
    ("pcie.txt", pci_errors),
    ("gpus.json", gpus),
    ("nvidia-smi.txt", smi),
)


def take(folder: Path, root: Path = Path("/")) -> Iterator[str]:
    """Write all parts into a folder that is there; yield what could not be written, and why. No part stays empty."""
    for name, write in PARTS:
        path = folder / name
        try:
            with open(path, "wb") as file:
                write(root, file)
        except (OSError, subprocess.SubprocessError) as error:
            yield f"{name}: {error}"
        if path.stat().st_size == 0:
            path.unlink()


def main() -> int:
    """Write a bundle; what is missing from it stands in ``missing.txt``."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)  # it is in a session of its own
    with suppress(OSError):
        os.nice(10)
    folder = Path(sys.argv[1])
    for line in take(folder, Path(sys.argv[2] if len(sys.argv) > 2 else "/")):
        with open(folder / "missing.txt", "a") as file:
            file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
