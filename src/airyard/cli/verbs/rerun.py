"""``airyard rerun``: what a run was, again, as a new run."""

from __future__ import annotations

import click

from airyard.cli.app import App, key_values, verb
from airyard.cli.verbs.run import show_submitted


@verb("rerun")
@click.argument("ref", metavar="ID")
@click.option("--override", "overrides", metavar="K=V", multiple=True, help="Replace a field; repeatable.")
@click.option("--name", help="Name of the new run.")
@click.option("--tag", "tags", metavar="K=V", multiple=True, help="Further tag of the new run; repeatable.")
@click.option("--idempotency-key", metavar="K", help="Same key, same run: safe to repeat.")
@click.option("-w", "--watch", "watched", is_flag=True, help="Follow it to its end and exit as it did.")
def command(
    app: App,
    ref: str,
    overrides: tuple[str, ...],
    name: str | None,
    tags: tuple[str, ...],
    idempotency_key: str | None,
    watched: bool,
) -> int:
    """Submit a run's workload again, with the code it had then, as a new run."""
    from airyard.sdk import submission

    workload, text = submission.prepare_again(
        app.client.source(ref), overrides=overrides, name=name, tags=key_values(tags, "--tag")
    )
    answer = app.client.submit(
        workload, source_yaml=text, idempotency_key=idempotency_key or submission.new_key()
    )
    return show_submitted(app, answer, watched=watched)
