"""``airyard metrics``: values that runs logged, and which run is best."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.core.errors import NotFound

MAX_COLUMNS = 6
"""Up to so many runs stand side by side; more take a row each."""


@verb("metrics")
@click.argument("refs", metavar="ID...", nargs=-1, required=True)
@click.option("--key", "keys", metavar="KEY", multiple=True, help="Only this metric; repeatable.")
@click.option("--best", metavar="max:KEY", help="Pick the run with the highest (max:) or lowest (min:) KEY.")
@click.option("--system", is_flag=True, help="In text: the machines' metrics (system/...) too.")
@click.option("--history", is_flag=True, help="Every step, with -o json.")
def command(
    app: App, refs: tuple[str, ...], keys: tuple[str, ...], best: str | None, system: bool, history: bool
) -> None:
    """Show the latest metrics of runs, side by side; with --best say which run won.

    tag:KEY=VALUE stands for all runs that have the tag.
    """
    refs = tuple(dict.fromkeys(name for ref in refs for name in _names(app, ref)))
    direction, metric = _parse_best(best) if best else ("", "")
    wanted = [*dict.fromkeys([*keys, metric])] if keys and metric else list(keys)
    answers = {ref: app.client.metrics(ref, keys=wanted, history=True) if history else None for ref in refs}
    found = {
        ref: dict(answer["metrics"]) if answer is not None else app.client.metrics(ref, keys=wanted)
        for ref, answer in answers.items()
    }
    winner = _best(found, direction, metric) if best else None
    if app.as_json:
        runs = [
            {
                "ref": ref,
                "metrics": values,
                **({"history": (answers[ref] or {}).get("history")} if history else {}),
            }
            for ref, values in found.items()
        ]
        app.console.data({"runs": runs, **({"best": winner} if winner else {})})
        return
    _print(app, found, system or bool(keys))
    if winner:
        app.console.text(f"best: run {winner['ref']} with {metric} {winner['value']:g}")


def _names(app: App, ref: str) -> list[str]:
    return [str(run_id) for run_id in app.client.numbers(ref)] if ref.startswith("tag:") else [ref]


def _parse_best(text: str) -> tuple[str, str]:
    direction, sign, metric = text.partition(":")
    if not sign or direction not in ("max", "min") or not metric:
        raise click.BadParameter(f"{text!r} is not max:KEY or min:KEY.", param_hint="--best")
    return direction, metric


def _best(found: dict[str, dict[str, Any]], direction: str, metric: str) -> dict[str, Any]:
    logged = {ref: float(metrics[metric]["value"]) for ref, metrics in found.items() if metric in metrics}
    values = {ref: value for ref, value in logged.items() if value == value}  # NaN never wins
    if not values:
        what = f"logged {metric!r} as anything but NaN" if logged else f"logged a metric {metric!r}"
        there = sorted({name for each in found.values() for name in each if not name.startswith("system/")})
        raise NotFound(
            f"None of the runs has {what}.",
            code="NO_METRIC",
            fix=f"They logged {', '.join(there)}." if there and not logged else None,
        )
    ref = (max if direction == "max" else min)(values, key=lambda each: values[each])
    return {"ref": ref, "key": metric, "value": values[ref], "step": found[ref][metric].get("step")}


def _print(app: App, found: dict[str, dict[str, Any]], system: bool) -> None:
    names = sorted({name for values in found.values() for name in values})
    shown = [name for name in names if system or not name.startswith("system/")]
    if not shown:
        hint = f" `--system` shows {len(names)} of the machines." if names else ""
        app.console.note(f"No metrics yet.{hint}")
        return
    if len(found) > MAX_COLUMNS:
        lines = [[ref, *(_cell(values.get(name)) for name in shown)] for ref, values in found.items()]
        app.console.text(formats.table(["RUN", *shown], lines, right=tuple(range(len(shown) + 1))))
        return
    rows = [[name, *(_cell(values.get(name)) for values in found.values())] for name in shown]
    columns = tuple(range(1, len(found) + 1))
    app.console.text(formats.table(["METRIC", *(f"RUN {ref}" for ref in found)], rows, right=columns))


def _cell(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{float(value['value']):.6g}"
