"""``airyard nodes``: the machines and their devices."""

from __future__ import annotations

from typing import Any

from airyard.cli import formats
from airyard.cli.app import App, verb


@verb("nodes")
def command(app: App) -> None:
    """List the nodes: type, pool, labels, what is free, what each device does."""
    nodes = app.client.nodes()
    if app.as_json:
        app.console.data({"nodes": nodes})
        return
    if not nodes:
        app.console.note(
            "No nodes yet: the agent of this machine has not reported. `airyard status` shows more."
        )
        return
    colour = app.console.colour_out
    rows = []
    for node in nodes:
        devices = node.get("devices") or []
        free = sum(device.get("state") == "free" for device in devices)
        state, hue = _state(node)
        rows.append(
            [
                node["name"],
                node["accelerator"],
                node.get("pool") or "-",
                formats.paint(state, hue, colour),
                f"{free}/{len(devices)}",
                _uses(devices),
            ]
        )
    head = ["NODE", "ACCELERATOR", "POOL", "STATE", "FREE", "IN USE BY"]
    if any(node.get("labels") for node in nodes):
        head.append("LABELS")
        for row, node in zip(rows, nodes, strict=True):
            row.append(_labels(node))
    app.console.text(formats.table(head, rows, right=(4,)))


def _labels(node: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted((node.get("labels") or {}).items())) or "-"


def _state(node: dict[str, Any]) -> tuple[str, str]:
    if not node.get("alive", True):
        return "down", "red"
    if node.get("cordoned"):
        return "cordoned", "yellow"
    if node.get("reservation_id"):
        return "reserved", "yellow"
    return ("simulated", "blue") if node.get("simulated") else ("up", "green")


def _uses(devices: list[dict[str, Any]]) -> str:
    runs = sorted({int(device["run_id"]) for device in devices if device.get("run_id") is not None})
    foreign = [
        str(device["detail"]) for device in devices if device.get("detail") and not device.get("run_id")
    ]
    return ", ".join([*(f"run {run_id}" for run_id in runs), *dict.fromkeys(foreign)]) or "-"
