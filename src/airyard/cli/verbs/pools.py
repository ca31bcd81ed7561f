"""``airyard pools``: what can be asked for."""

from __future__ import annotations

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
            pool["guaranteed"],
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
