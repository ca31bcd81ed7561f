"""What the watch makes of sightings: events once, of devices that are offered, also of an agent before."""

from __future__ import annotations

from pathlib import Path

from airyard.core.health.facts import Component, Severity, Source
from airyard.core.health.sightings import Sighting
from airyard.node.health_watch import HealthWatch
from airyard.node.inventory import Device, Node


def sighting(**more: object) -> Sighting:
    given: dict[str, object] = {
        "rule": "xid.79",
        "component": Component.GPU,
        "severity": Severity.CRITICAL,
        "source": Source.KERNEL,
        "message": "lost",
        **more,
    }
    return Sighting(**given)  # type: ignore[arg-type]  # a test's own fields


def node(*uuids: str) -> Node:
    devices = tuple(Device(index=index, uuid=uuid) for index, uuid in enumerate(uuids))
    return Node(name="n", accelerator="GPU_1xH100", model="H100", devices=devices, cpus=1, memory_bytes=1)


def watch(folder: Path) -> HealthWatch:
    made = HealthWatch(folder, lambda: None)
    made.configure({}, "m")
    made.offers([node("GPU-0", "GPU-1")])
    made.places.note("0000:11:00", 0, "GPU-0")
    made.places.note("0000:13:00", 2, "GPU-2")
    return made


def rules(made: HealthWatch) -> list[tuple[str, str]]:
    return [(event["rule"], event.get("device_uuid", "")) for event in made.waiting()]


def test_a_gpu_that_is_not_offered_is_nobodys_concern(tmp_path: Path) -> None:
    made = watch(tmp_path)
    for pci in ("0000:11:00", "0000:13:00", "0000:99:00"):  # ours, somebody else's, nobody knows whose
        made._report([made.places.placed(sighting(pci=pci))])
    made._report([sighting(rule="pcie.aer_fatal", pci="0000:99:00"), sighting(rule="host.edac")])
    assert rules(made) == [("xid.79", "GPU-0"), ("pcie.aer_fatal", ""), ("host.edac", "")]


def test_without_nvml_a_fault_is_the_machines(tmp_path: Path) -> None:
    made = HealthWatch(tmp_path, lambda: None)
    made.offers([node("SIM-0")])
    made._report([sighting(pci="0000:99:00")])
    assert rules(made) == [("xid.79", "")]


def test_the_same_line_is_the_same_event_for_the_next_agent(tmp_path: Path) -> None:
    one = sighting(mark="77", pci="0000:11:00")
    first = watch(tmp_path)
    first._report([first.places.placed(one)])
    second = watch(tmp_path)
    second._report([second.places.placed(one)])
    (event,) = second.waiting()
    assert event["event_id"].endswith("-77-xid.79")
    assert event["machine"] == "m"


def test_a_source_that_breaks_is_looked_at_again_and_others_too(tmp_path: Path) -> None:
    made = watch(tmp_path)
    looks: list[str] = []

    class Breaks:
        def every_s(self, settings: object) -> float:
            return 0.05

        def look(self) -> list[Sighting]:
            looks.append("breaks")
            raise RuntimeError("a bug")

    class Ends:
        def every_s(self, settings: object) -> float:
            return 0.05

        def look(self) -> list[Sighting]:
            if looks.count("breaks") >= 2:
                made._closing.set()
            return [sighting(rule="host.edac")]

    made._run([Breaks(), Ends()])
    assert looks.count("breaks") == 2
    assert rules(made) == [("host.edac", "")]
