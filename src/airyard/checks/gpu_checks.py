"""The rules over what NVML tells of the GPUs of a machine that runs nothing.

Owns: what each reading has to be, and what to do when it is not. Must not know: how it was read (``nvml.py``).
What a device or driver does not tell is skipped: it never fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airyard.checks import nvml
from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, unknown, warned
from airyard.checks.nvml import Gpu, Gpus
from airyard.core.health.clock_reasons import SLOWED, is_brake_alone
from airyard.core.health.facts import CheckResult, Component, Remedy, Retest

Read = tuple[Gpus, int | None]
"""What was read, and how many GPUs there should be."""

_REASONS = {
    0x008: "hardware slowdown",
    0x020: "thermal slowdown",
    0x040: "hardware thermal",
    0x080: "power brake",
}
_RECOVERY = {
    1: (Remedy.GPU_RESET, "a reset of the GPU"),
    2: (Remedy.REBOOT, "a reboot"),
    3: (Remedy.GPU_RESET, "that its peers let go of it"),
    4: (Remedy.GPU_RESET, "to be drained and reset"),
    5: (Remedy.REBOOT, "that its IMEX domain be recovered"),
    6: (Remedy.REBOOT, "a reset of the bus"),
    7: (Remedy.REBOOT, "a reboot of the system"),
}


def collect(site: Site) -> Read:
    """Read all GPUs."""
    return nvml.read(), site.gpus


def _there(read: Read, limits: Thresholds) -> Iterator[CheckResult]:
    gpus, wanted = read
    if gpus.error is not None:
        yield _not_open(gpus, wanted)
        return
    count = len(gpus.gpus)
    answer = sum(not (gpu.lost or gpu.mute) for gpu in gpus.gpus)
    if wanted is not None and count != wanted:
        yield failed(
            "gpu.count",
            f"{count} GPUs answer, {wanted} should be there",
            "look at the kernel's log for PCIe errors or an Xid 79, and reboot the machine",
            Component.GPU,
            Remedy.REBOOT,
            Retest.T2,
            value=count,
            threshold=wanted,
        )
    elif answer != count:
        yield skipped(
            "gpu.count", f"{answer} of {count} GPUs answer; `gpu.lost` says which do not", value=answer
        )
    elif not count and wanted is None:
        text = "there is a driver and no GPU, and nobody says how many there should be"
        yield warned("gpu.count", text, "say it by --gpus; if there are any, reboot the machine")
    else:
        yield passed("gpu.count", f"{count} GPUs answer", value=count)


def _not_open(gpus: Gpus, wanted: int | None) -> CheckResult:
    """Tell apart why NVML did not open: no GPU here, a driver that is not there, one that does not fit."""
    if gpus.error == nvml.NO_LIBRARY and not wanted:
        return skipped("gpu.count", f"no NVIDIA driver here ({gpus.error_text})")
    if gpus.error == nvml.MISMATCH:
        return failed(
            "gpu.count",
            f"the driver's library and its kernel module are of two versions ({gpus.error_text})",
            "drain the machine and reboot it, or load the module again",
            Component.DRIVER,
            Remedy.REBOOT,
        )
    if gpus.error == nvml.NO_PERMISSION:
        return failed(
            "gpu.count",
            f"NVML does not open for this account: {gpus.error_text}",
            "let the account open /dev/nvidia*; in a container, give it the devices",
            Component.DRIVER,
            threshold=wanted,
        )
    return failed(
        "gpu.count",
        f"NVML does not open: {gpus.error_text} ({gpus.error})",
        "look at `nvidia-smi` and the kernel's log; load the driver, or reboot",
        Component.DRIVER,
        Remedy.REBOOT,
        Retest.T1,
        threshold=wanted,
    )


Rule = Callable[[Gpu, Thresholds], CheckResult | None]
"""Judges one device; None where it does not tell what is asked."""


def each_gpu(name: str, rule: Rule) -> Callable[[Read, Thresholds], Iterator[CheckResult]]:
    """Judge all devices: one word for those that pass, one for each that does not."""

    def judge(read: Read, limits: Thresholds) -> Iterator[CheckResult]:
        gpus = read[0].gpus
        if not gpus:
            yield skipped(name, "no GPU to look at")
            return
        quiet = untold = 0
        for gpu in gpus:
            # Of a lost GPU one thing is said: what it does not tell any more is no further fault.
            found = rule(gpu, limits) if rule in _OF_ALL or not (gpu.lost or gpu.mute) else None
            if found is None:
                untold += 1
            elif found.status.value == "PASS":
                quiet += 1
            else:
                yield found
        if quiet:
            yield passed(name, f"{quiet} of {len(gpus)} GPUs", value=quiet)
        elif untold == len(gpus):
            yield skipped(name, "these GPUs, or this driver, do not tell")

    return judge


def fine(name: str) -> CheckResult:
    return passed(name, "")


def named(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid or gpu.pci or 'unnamed'})"


_BROKEN = frozenset({10, 11, 14, 17, 27, 28, 29, 999})
"""Time-out, interrupts, damaged firmware tables, the system's refusal, not ready, gone, invalid state, unknown: nothing
that a device merely does not have."""


def _answers(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if not gpu.lost and gpu.reset_required:
        return None  # ``gpu.recovery`` says that
    if not gpu.lost and gpu.mute:
        call, code = next(iter(gpu.errors.items()))
        return unknown(
            "gpu.lost",
            f"{named(gpu)} answers no call: {call} gives error {code}, as do the others",
            "look at `nvidia-smi` and the kernel's log, and check again",
            device=gpu.index,
            value=code,
        )
    if not gpu.lost:
        odd = [f"{call} ({code})" for call, code in gpu.errors.items() if code in _BROKEN]
        if not odd:
            return fine("gpu.lost")
        return warned(
            "gpu.lost",
            f"{named(gpu)} answers, but not {', '.join(odd[:4])}: what depends on that was not looked at",
            "look at `nvidia-smi -q` and the kernel's log",
            device=gpu.index,
        )
    return failed(
        "gpu.lost",
        f"{named(gpu)} is lost: it does not answer any more",
        "reboot the machine; the second time, have it replaced",
        Component.GPU,
        Remedy.REBOOT,
        Retest.T3,
        device=gpu.index,
    )


def _persistence(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.persistence is None or gpu.persistence:
        return None if gpu.persistence is None else fine("gpu.persistence")
    return warned(
        "gpu.persistence",
        f"{named(gpu)}: persistence mode is off, so that each start initialises it again",
        "run nvidia-persistenced, or `nvidia-smi -pm 1`",
        device=gpu.index,
    )


def _ecc(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.ecc is None:
        return None
    if gpu.ecc and gpu.ecc_pending:
        return fine("gpu.ecc_mode")
    state = "off" if not gpu.ecc else "on, and off after the next reset"
    if not limits.generation:  # boards of workstations come with it off
        text = f"{named(gpu)}: ECC is {state}"
        return warned("gpu.ecc_mode", text, "`nvidia-smi -e 1`, then reset the GPU", device=gpu.index)
    return failed(
        "gpu.ecc_mode",
        f"{named(gpu)}: ECC is {state}",
        "`nvidia-smi -e 1`, then reset the GPU",
        Component.GPU_MEMORY,
        Remedy.GPU_RESET,
        device=gpu.index,
    )


def _uncorrected(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.uncorrected is None:
        return None
    if gpu.uncorrected == 0:
        return fine("gpu.ecc_uncorrected")
    return failed(
        "gpu.ecc_uncorrected",
        f"{named(gpu)}: {gpu.uncorrected} memory errors that ECC could not correct, since the last reset",
        "reset the GPU; when they come again within 30 days, have it replaced",
        Component.GPU_MEMORY,
        Remedy.GPU_RESET,
        Retest.T2,
        device=gpu.index,
        value=gpu.uncorrected,
        threshold=0,
    )


def _corrected(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.corrected is None:
        return None
    most, many = limits["ecc_corrected_fail"], limits["ecc_corrected_warn"]
    if gpu.corrected < min(most, many):
        return fine("gpu.ecc_corrected")
    text = f"{named(gpu)}: {gpu.corrected:,} corrected memory errors since the last reset"
    if gpu.corrected < most:
        return warned(
            "gpu.ecc_corrected",
            text,
            "test it when it is idle",
            device=gpu.index,
            value=gpu.corrected,
            threshold=many,
        )
    return failed(
        "gpu.ecc_corrected",
        text,
        "reset the GPU and burn it in before it is used",
        Component.GPU_MEMORY,
        Remedy.GPU_RESET,
        Retest.T3,
        device=gpu.index,
        value=gpu.corrected,
        threshold=most,
    )


def _rows(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.remap_failure is None:
        return None
    most, replaced = limits["remapped_uncorrected_fail"], gpu.remapped_uncorrected or 0
    spent = (
        "a row of memory could not be replaced"
        if gpu.remap_failure
        else "a bank of memory has no spare row left"
        if gpu.banks_none
        else f"{replaced} rows of memory were replaced"
        if replaced > most
        else ""
    )
    if spent:
        return failed(
            "gpu.rows",
            f"{named(gpu)}: {spent}",
            "have the GPU replaced",
            Component.GPU_MEMORY,
            Remedy.REPLACE,
            Retest.T3,
            device=gpu.index,
            value=replaced if replaced > most else None,
            threshold=most if replaced > most else None,
        )
    if gpu.remap_pending:
        return failed(
            "gpu.rows",
            f"{named(gpu)}: a row of memory waits for a reset to be replaced",
            "reset the GPU",
            Component.GPU_MEMORY,
            Remedy.GPU_RESET,
            Retest.T2,
            device=gpu.index,
        )
    if gpu.banks_low:
        return warned(
            "gpu.rows",
            f"{named(gpu)}: few spare rows are left in {gpu.banks_low} banks of memory",
            "plan its replacement",
            device=gpu.index,
            value=gpu.banks_low,
        )
    return fine("gpu.rows")


def _recovery(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.reset_required and not gpu.lost:
        return failed(
            "gpu.recovery",
            f"{named(gpu)} answers only after a reset",
            "drain the machine and reset the GPU",
            Component.GPU,
            Remedy.GPU_RESET,
            Retest.T2,
            device=gpu.index,
            value=nvml.RESET_REQUIRED,
            threshold=0,
        )
    if gpu.lost or gpu.mute:
        return None
    if gpu.recovery_action is None:
        return None
    if gpu.recovery_action == 0:
        return fine("gpu.recovery")
    remedy, words = _RECOVERY.get(gpu.recovery_action, (Remedy.REBOOT, "a reboot"))
    return failed(
        "gpu.recovery",
        f"{named(gpu)}: the driver asks for {words}",
        "drain the machine and give it what the driver asks for",
        Component.GPU,
        remedy,
        Retest.T2,
        device=gpu.index,
        value=gpu.recovery_action,
        threshold=0,
    )


_OF_ALL = frozenset({_answers, _recovery})
"""What is said also of devices that answer nothing."""


def _clocks(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.clock_reasons is None:
        return None
    found = gpu.clock_reasons & SLOWED
    if not found:
        return fine("gpu.clocks")
    words = ", ".join(words for bit, words in _REASONS.items() if found & bit)
    component = Component.FACILITY if is_brake_alone(found) else Component.GPU
    return failed(
        "gpu.clocks",
        f"{named(gpu)} is slowed down although nothing runs: {words}",
        "look at its cooling and power; a power brake on several machines of a rack is the rack's",
        component,
        Remedy.NONE,
        Retest.T3,
        device=gpu.index,
        value=gpu.clock_reasons,
    )


def _temperature(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.temperature_c is None or gpu.pids:
        return None  # it is only cool when nothing runs
    most = limits["idle_temperature_warn"]
    if gpu.temperature_c < most:
        return fine("gpu.temperature")
    return warned(
        "gpu.temperature",
        f"{named(gpu)} has {gpu.temperature_c} °C with nothing running",
        "look at its cooling",
        device=gpu.index,
        value=gpu.temperature_c,
        threshold=most,
        unit="°C",
    )


def _pcie(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    width, most = gpu.pcie_width, limits.get("pcie_width") or gpu.pcie_width_max
    if width is None or most is None:
        return None
    # The generation falls when nothing is sent, so that only the width says something here.
    most = min(most, gpu.pcie_width_max or most)
    if width >= most:
        return fine("gpu.pcie_width")
    return failed(
        "gpu.pcie_width",
        f"{named(gpu)}: its PCIe link has {width} lanes, not {most:.0f}",
        "reboot the machine; if it stays so, reseat the board or look at the riser",
        Component.GPU,
        Remedy.REBOOT,
        Retest.T2,
        device=gpu.index,
        value=width,
        threshold=most,
        unit="lanes",
    )


def _links(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if "nvmlDeviceGetNvLinkState" in gpu.errors:
        return None
    if gpu.mig or (gpu.links is None and limits.get("nvlinks") is None):
        return None
    links = gpu.links or ()
    least = limits.get("nvlinks") or len(links)
    wanted = int(least)
    active = sum(links)
    if active >= wanted:
        return fine("gpu.nvlink")
    dead = [str(number) for number, state in enumerate(links) if not state]
    which = f" (link {', '.join(dead)})" if dead else ""
    return failed(
        "gpu.nvlink",
        f"{named(gpu)}: {active} of {wanted} NVLinks are active{which}",
        "reset all GPUs of the machine; if it stays so, have it looked at",
        Component.NVLINK,
        Remedy.GPU_RESET,
        Retest.T3,
        device=gpu.index,
        value=active,
        threshold=least,
        unit="links",
    )


def _fabric(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.mig or not limits.get("nvswitch") or gpu.fabric_state in (None, 0):
        return None  # no NVSwitch, or a driver that does not tell
    if gpu.fabric_state == 3 and gpu.fabric_summary in (None, 0, 1):
        return fine("gpu.fabric")
    states = {1: "not begun", 2: "still under way"}
    what = states.get(gpu.fabric_state or 0, "complete, and the fabric is not healthy")
    return failed(
        "gpu.fabric",
        f"{named(gpu)}: its registration with the NVSwitch fabric is {what}",
        "start nvidia-fabricmanager in the driver's version, else reboot the machine",
        Component.DRIVER,
        Remedy.REBOOT,
        Retest.T3,
        device=gpu.index,
        value=gpu.fabric_state,
        threshold=3,
    )


def _foreign(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    used, most = gpu.memory_used_mib, limits["foreign_memory_mib_fail"]
    if used is None:
        return None
    if used <= most and not gpu.pids:
        return fine("gpu.foreign")
    who = (
        f" by {', '.join(f'process {pid}' for pid in gpu.pids[:3])}"
        if gpu.pids
        else ", and no process is known to have it"
    )
    return warned(
        "gpu.foreign",
        f"{named(gpu)} is in use: {used:,.0f} MiB{who}",
        "right while a run is on it; else end that process, or reset the GPU",
        device=gpu.index,
        value=used,
        threshold=most,
        unit="MiB",
    )


def _versions(read: Read, limits: Thresholds) -> Iterator[CheckResult]:
    gpus = read[0].gpus
    if not gpus:
        yield skipped("gpu.versions", "no GPU to look at")
        return
    for what in ("name", "vbios", "inforom", "gsp"):
        found = sorted({getattr(gpu, what) for gpu in gpus} - {""})
        if len(found) > 1:
            yield warned(
                "gpu.versions",
                f"the GPUs differ in their {what}: {', '.join(found)}",
                "give all GPUs of a machine the same firmware",
            )
            return
    yield passed(
        "gpu.versions", f"driver {read[0].driver}, CUDA {read[0].cuda // 1000}.{read[0].cuda % 1000 // 10}"
    )


def _check(
    name: str, number: int, title: str, passes: str, rule: Rule, component: Component = Component.GPU
) -> Check:
    return Check(
        name=name, number=number, title=title, passes=passes, judge=each_gpu(name, rule), component=component
    )


PROBE = Probe(
    name="gpus",
    collect=collect,
    deadline_s=15.0,
    checks=(
        Check(
            name="gpu.count",
            number=1,
            title="NVML opens, and all GPUs answer",
            passes="as many as there should be",
            judge=_there,
            component=Component.GPU,
        ),
        _check("gpu.lost", 1, "no GPU is lost", "every call is answered", _answers),
        Check(
            name="gpu.versions",
            number=4,
            title="firmware and driver",
            passes="all GPUs of a machine are alike",
            judge=_versions,
            component=Component.DRIVER,
        ),
        _check("gpu.persistence", 5, "persistence mode", "on (else a warning)", _persistence),
        _check(
            "gpu.ecc_mode",
            6,
            "ECC",
            "on, and on after a reset (else a warning on boards without limits of their own)",
            _ecc,
            Component.GPU_MEMORY,
        ),
        _check(
            "gpu.ecc_uncorrected",
            7,
            "uncorrected memory errors",
            "none since the last reset",
            _uncorrected,
            Component.GPU_MEMORY,
        ),
        _check(
            "gpu.ecc_corrected",
            8,
            "corrected memory errors",
            "fewer than ecc_corrected_warn",
            _corrected,
            Component.GPU_MEMORY,
        ),
        _check(
            "gpu.rows",
            9,
            "replaced rows of memory",
            "none waits, none failed, spares are left",
            _rows,
            Component.GPU_MEMORY,
        ),
        _check("gpu.recovery", 11, "what the driver asks for", "nothing", _recovery),
        _check(
            "gpu.clocks", 12, "clocks at idle", "slowed down by neither heat, power nor hardware", _clocks
        ),
        _check(
            "gpu.temperature",
            14,
            "temperature at idle",
            "below idle_temperature_warn (else a warning)",
            _temperature,
        ),
        _check("gpu.pcie_width", 16, "PCIe lanes", "as many as machine and board have", _pcie),
        _check("gpu.nvlink", 18, "NVLinks", "all active", _links, Component.NVLINK),
        _check(
            "gpu.fabric",
            19,
            "NVSwitch fabric",
            "registered and healthy, on boards with NVSwitch",
            _fabric,
            Component.DRIVER,
        ),
        _check(
            "gpu.foreign",
            24,
            "memory in use",
            "no process, and less than foreign_memory_mib_fail (else a warning)",
            _foreign,
        ),
    ),
)
