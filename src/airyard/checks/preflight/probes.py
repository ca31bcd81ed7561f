"""The probes of this folder, for the catalogue.

Owns: the list. Must not know: the other probes, how any is run.
"""

from __future__ import annotations

from airyard.checks.contract import Probe
from airyard.checks.preflight import compute, fabric, gpu_static, links, network, storage

PROBES: tuple[Probe, ...] = (
    gpu_static.PROBE,
    links.PROBE,
    network.PROBE,
    storage.PROBE,
    storage.SPEED,
    compute.PROBE,
    fabric.LOOPBACK,
    fabric.GROUP,
)
