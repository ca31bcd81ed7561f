"""The process that speaks with NVML for the agent, by JSON lines: a call that hangs hangs nobody else.

Owns: what can be asked. Must not know: who asks, deadlines (``nvml_client.py`` has them). It ends with its parent.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any

from airyard.checks import nvml, nvml_load, nvml_state
from airyard.checks.nvml_values import GpuValues

_PARENT_EVERY_S = 5.0


def _seen(library: ModuleType) -> dict[str, Any]:
    """Return the devices and who is on them, as the inventory wants to know them."""
    try:
        count = int(library.nvmlDeviceGetCount())
    except library.NVMLError as error:
        return {"error": str(error), "gpus": []}
    return {"error": "", "gpus": [_device(library, index) for index in range(count)]}


def _device(library: ModuleType, index: int) -> dict[str, Any]:
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        uuid, name = library.nvmlDeviceGetUUID(handle), library.nvmlDeviceGetName(handle)
    except library.NVMLError as error:
        return {"index": index, "error": str(error)}
    try:
        pids = [int(one.pid) for one in library.nvmlDeviceGetComputeRunningProcesses(handle)]
    except library.NVMLError:
        pids = []
    return {"index": index, "uuid": _text(uuid), "name": _text(name), "pids": pids}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _count(library: ModuleType) -> int:
    try:
        return int(library.nvmlDeviceGetCount())
    except library.NVMLError:
        return 0


_OPERATIONS: dict[str, Callable[[ModuleType, dict[str, Any]], Any]] = {
    "open": lambda library, asked: None,
    "seen": lambda library, asked: _seen(library),
    "states": lambda library, asked: nvml_state.states(library, [str(one) for one in asked["uuids"]]),
    "loads": lambda library, asked: [asdict(nvml_load.load(library, i)) for i in range(_count(library))],
    "readings": lambda library, asked: asdict(nvml.read()),
    "counts": lambda library, asked: [asdict(nvml_load.counts(library, i)) for i in range(_count(library))],
}


def serve(stream: socket.socket) -> None:
    """Answer until the other end closes."""
    try:
        import pynvml
    except ImportError:
        stream.sendall(_line({"id": 1, "error": {"code": nvml.NO_LIBRARY, "message": "no nvidia-ml-py"}}))
        return
    opened = False
    values = GpuValues(pynvml)  # it remembers counters from one question to the next
    operations: dict[str, Callable[[ModuleType, dict[str, Any]], Any]] = {
        **_OPERATIONS,
        "values": lambda library, asked: values.of(int(asked["index"]), rare=bool(asked.get("rare"))),
    }
    for line in stream.makefile("rb"):
        asked = json.loads(line)
        answer: dict[str, Any] = {"id": asked["id"]}
        try:
            if not opened:
                pynvml.nvmlInit()
                opened = True
            answer["result"] = operations[asked["op"]](pynvml, asked)
        except pynvml.NVMLError as error:
            answer["error"] = {"code": int(error.value), "message": str(error)}
        stream.sendall(_line(answer))


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _end_with(parent: int) -> None:
    """End when the parent has: a call that hangs would keep this process for ever."""
    while os.getppid() == parent:
        time.sleep(_PARENT_EVERY_S)
    os._exit(1)


def main() -> None:
    """Serve the socket whose descriptor is the argument."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with socket.socket(fileno=int(sys.argv[1])) as stream:
        serve(stream)


if __name__ == "__main__":
    main()
