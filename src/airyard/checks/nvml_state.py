"""Reads what a GPU is at now, and whether it answers at all: by UUID, since an index shifts when one is lost.

Owns: these calls to nvidia-ml-py. Must not know: what a reading means. Calls may hang: it runs in the process of
``nvml_child.py``. What a device does not tell is left out.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from airyard.checks.nvml import LOST, NO_HANDLE

_SM_CLOCK = 1


def states(nvml: ModuleType, uuids: list[str]) -> list[dict[str, Any]]:
    """Return a row a device, in the order of ``uuids``. Cost: about ten calls each."""
    return [_state(nvml, uuid) for uuid in uuids]


def _state(nvml: ModuleType, uuid: str) -> dict[str, Any]:
    row: dict[str, Any] = {"uuid": uuid}
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        row["index"] = int(nvml.nvmlDeviceGetIndex(handle))
        row["temperature_c"] = int(nvml.nvmlDeviceGetTemperature(handle, 0))
    except nvml.NVMLError as error:
        row["error"] = str(error)
        row["lost"] = int(error.value) in NO_HANDLE
        if int(error.value) not in NO_HANDLE and "index" in row:
            del row["error"], row["lost"]  # it answers; it only does not tell its temperature
        else:
            return row

    def ask(call: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, call)(handle, *arguments)
        except nvml.NVMLError as error:
            if int(error.value) == LOST:
                row.update(error=str(error), lost=True)
            return None

    rates, memory = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetMemoryInfo")
    power, reasons = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetCurrentClocksEventReasons")
    told = {
        "utilization": int(rates.gpu) if rates is not None else None,
        "memory_mb": round(memory.used / 1e6) if memory is not None else None,
        "power_w": round(power / 1000) if power is not None else None,
        "clock_mhz": ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
        "clock_reasons": reasons,
        "ecc_uncorrected": ask("nvmlDeviceGetTotalEccErrors", 1, 0),
        "pids": [int(one.pid) for one in ask("nvmlDeviceGetComputeRunningProcesses") or ()],
    }
    row.update({name: value for name, value in told.items() if value is not None})
    return row
