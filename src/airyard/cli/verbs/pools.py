"""``airyard pools``: what can be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airyard.cli import formats
from airyard.cli.app import App, verb


@verb("pools")
def command(app: App) -> None:
    """List the pools: accelerator type, nodes, what is free, guaranteed and borrowed, how the queue is ordered."""
    pools = app.client.pools()
    if app.as_json:
        app.console.data({"pools": pools})
        return
    if not pools:
        app.console.note("No pools: no node has reported yet.")
        return
    rows = [
        [
            pool["name"],
            pool["accelerator"],
            pool["nodes"],
            f"{pool['free_devices']}/{pool['devices']}",
            pool["whole_free_nodes"],
            _guaranteed(pool),
            pool["borrowed"],
            pool["rules"]["order"],
            "yes" if pool["declared"] else "no",
        ]
        for pool in pools
    ]
    head = (
        "POOL",
        "ACCELERATOR",
        "NODES",
        "FREE DEVICES",
        "WHOLE FREE NODES",
        "GUARANTEED",
        "BORROWED",
        "ORDER",
        "DECLARED",
    )
    app.console.text(formats.table(head, rows, right=(2, 3, 4, 5, 6)))


def _guaranteed(pool: Mapping[str, Any]) -> str:
    """Return the devices that are guaranteed, and how many that is now where nodes are missing."""
    now = pool.get("guaranteed_now", pool["guaranteed"])
    return str(now) if now == pool["guaranteed"] else f"{now} of {pool['guaranteed']}"
