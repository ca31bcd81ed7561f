"""Reads GPUs through NVML: one frozen reading a device, with what could not be read and why.

Owns: the calls to nvidia-ml-py of the health checks but those on pairs and over time (``preflight/links.py``). Must not
know: what a reading means (``gpu_checks.py``). Calls may hang: whoever reads does so in a process that can be given up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

NO_PERMISSION = 4
NO_LIBRARY = 12
LOST = 15
RESET_REQUIRED = 16
MISMATCH = 18
NO_HANDLE = frozenset({6, 15, 28, 999})
"""Not found, lost, no such GPU, unknown error: with one of these a device that is counted has gone."""
RECOVERY_ACTION = 230
"""The field in which the driver says what a GPU needs to recover."""
_MOST_LINKS = 36
_NO_SUCH_LINK = (2, 3, 13)
"""Invalid argument, not supported, no such function."""
LINK_SPEED = 164
"""The field in which a link's speed stands, in MB/s."""
_SRAM = 7
"""NVML's number of the caches among the places of memory errors."""
_SM = 1
"""NVML's number of the clock of the multiprocessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device. None is what this device or driver does not tell; ``errors``: the code of every call that failed."""

    index: int
    uuid: str = ""
    name: str = ""
    pci: str = ""
    vbios: str = ""
    inforom: str = ""
    gsp: str = ""
    persistence: bool | None = None
    mig: bool | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    sram_corrected: int | None = None
    sram_uncorrected: int | None = None
    sram_worn: bool | None = None
    """The driver says that more memory of its caches failed than a GPU may have."""
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    banks_low: int | None = None
    banks_none: int | None = None
    recovery_action: int | None = None
    clock_reasons: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    links: tuple[bool, ...] | None = None
    link_mb_s: tuple[int, ...] = ()
    """Of each active link, where the driver tells."""
    fabric_state: int | None = None
    fabric_summary: int | None = None
    memory_used_mib: float | None = None
    retired_pages: int | None = None
    clock_mhz: int | None = None
    """The application clock, and the board's own."""
    clock_default_mhz: int | None = None
    pids: tuple[int, ...] = ()
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def said_lost(self) -> bool:
        """True when the driver says in so many words that the GPU is lost."""
        return LOST in self.errors.values()

    @property
    def lost(self) -> bool:
        """True when the GPU does not answer any more: the driver says so, or has no handle of it or one for nothing."""
        if self.said_lost or self.errors.get("nvmlDeviceGetHandleByIndex") in NO_HANDLE:
            return True
        return self.mute and set(self.errors.values()) <= NO_HANDLE

    @property
    def reset_required(self) -> bool:
        """True when a call said that the GPU has to be reset before it answers."""
        return RESET_REQUIRED in self.errors.values()

    @property
    def mute(self) -> bool:
        """True when it does not even say who it is: whatever else it does not tell means nothing."""
        return bool(self.errors) and not (self.uuid or self.name or self.pci)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """All devices. ``error`` is the code with which NVML itself did not open; None when it did."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    library: str = ""
    cuda: int = 0
    error: int | None = None
    error_text: str = ""


def read() -> Gpus:
    """Read all devices once. Never raises for what NVML says. Cost: some ms a device, and the driver's own delays."""
    try:
        import pynvml
    except ImportError:
        return Gpus(error=NO_LIBRARY, error_text="nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        driver, cuda = str(pynvml.nvmlSystemGetDriverVersion()), int(pynvml.nvmlSystemGetCudaDriverVersion())
        library = str(pynvml.nvmlSystemGetNVMLVersion())
    except pynvml.NVMLError as error:
        return Gpus(error=int(error.value), error_text=str(error))
    gpus = tuple(_gpu(pynvml, index) for index in range(count))
    return Gpus(gpus=gpus, driver=driver, library=library, cuda=cuda)


def _gpu(nvml: ModuleType, index: int) -> Gpu:
    errors: dict[str, int] = {}

    def ask(call: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, call)(*arguments)
        except nvml.NVMLError as error:
            errors[call] = int(error.value)
            return None

    handle = ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Gpu(index=index, errors=errors)
    ecc, remapped = ask("nvmlDeviceGetEccMode", handle), ask("nvmlDeviceGetRemappedRows", handle)
    banks, memory = ask("nvmlDeviceGetRowRemapperHistogram", handle), ask("nvmlDeviceGetMemoryInfo", handle)
    mig, pci = ask("nvmlDeviceGetMigMode", handle), ask("nvmlDeviceGetPciInfo", handle)
    fabric = _fabric(nvml, ask, handle)
    processes = ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
    sram, links = _sram(nvml, ask, handle), link_states(nvml, handle, errors)
    pages = [ask("nvmlDeviceGetRetiredPages", handle, cause) for cause in (0, 1)]
    return Gpu(
        index=index,
        uuid=str(ask("nvmlDeviceGetUUID", handle) or ""),
        name=str(ask("nvmlDeviceGetName", handle) or ""),
        pci=_text(pci.busId) if pci is not None else "",
        vbios=str(ask("nvmlDeviceGetVbiosVersion", handle) or ""),
        inforom=_text(ask("nvmlDeviceGetInforomImageVersion", handle) or ""),
        gsp=_text(ask("nvmlDeviceGetGspFirmwareVersion", handle) or ""),
        persistence=_flag(ask("nvmlDeviceGetPersistenceMode", handle)),
        mig=bool(mig[0]) if mig is not None else None,
        ecc=bool(ecc[0]) if ecc is not None else None,
        ecc_pending=bool(ecc[1]) if ecc is not None else None,
        corrected=ask("nvmlDeviceGetTotalEccErrors", handle, 0, 0),
        uncorrected=ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        sram_corrected=ask("nvmlDeviceGetMemoryErrorCounter", handle, 0, 0, _SRAM),
        sram_uncorrected=sram[0],
        sram_worn=sram[1],
        remapped_uncorrected=remapped[1] if remapped is not None else None,
        remap_pending=bool(remapped[2]) if remapped is not None else None,
        remap_failure=bool(remapped[3]) if remapped is not None else None,
        banks_low=int(banks.low) if banks is not None else None,
        banks_none=int(banks.none) if banks is not None else None,
        recovery_action=_field(ask, handle, RECOVERY_ACTION),
        clock_reasons=ask("nvmlDeviceGetCurrentClocksEventReasons", handle),
        temperature_c=ask("nvmlDeviceGetTemperature", handle, 0),
        power_w=_watts(ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_w=_watts(ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        power_default_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        links=links,
        link_mb_s=_speeds(ask, handle, links or ()),
        fabric_state=fabric[0],
        fabric_summary=fabric[1],
        memory_used_mib=memory.used / (1 << 20) if memory is not None else None,
        retired_pages=None if None in pages else sum(len(each) for each in pages),
        clock_mhz=ask("nvmlDeviceGetApplicationsClock", handle, _SM),
        clock_default_mhz=ask("nvmlDeviceGetDefaultApplicationsClock", handle, _SM),
        pids=tuple(sorted(int(process.pid) for process in processes)),
        errors=errors,
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _field(ask: Callable[..., Any], handle: Any, number: int) -> int | None:
    values = ask("nvmlDeviceGetFieldValues", handle, [number])
    if values is None or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def link_states(nvml: ModuleType, handle: Any, errors: dict[str, int]) -> tuple[bool, ...] | None:
    """Return the state of every link there is; None where links are not told of at all, or no more.

    Links are numbered without holes: the first number that there is not ends them. Any other error is noted.
    """
    states = []
    for link in range(_MOST_LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except nvml.NVMLError as error:
            if int(error.value) in _NO_SUCH_LINK:
                break
            errors["nvmlDeviceGetNvLinkState"] = int(error.value)
            return None
    return tuple(states) or None


def _speeds(ask: Callable[..., Any], handle: Any, links: tuple[bool, ...]) -> tuple[int, ...]:
    active = [(LINK_SPEED, link) for link, state in enumerate(links) if state]
    values = ask("nvmlDeviceGetFieldValues", handle, active) if active else None
    return tuple(int(each.value.uiVal) for each in values or () if each.nvmlReturn == 0)


def _sram(nvml: ModuleType, ask: Callable[..., Any], handle: Any) -> tuple[int | None, bool | None]:
    """Return the uncorrected errors of the caches since the last reset, and whether there were too many at all."""
    structure = getattr(nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    if structure is not None:
        status = structure()
        if ask("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status)) is not None:
            return int(status.volatileUncParity + status.volatileUncSecDed), bool(status.bThresholdExceeded)
    return ask("nvmlDeviceGetMemoryErrorCounter", handle, 1, 0, _SRAM), None


def _fabric(nvml: ModuleType, ask: Callable[..., Any], handle: Any) -> tuple[int | None, int | None]:
    structure = getattr(nvml, "c_nvmlGpuFabricInfo_v3_t", None)
    if structure is None:
        return None, None
    info = structure()
    if ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
        return None, None
    return int(info.state), int(info.healthSummary)
