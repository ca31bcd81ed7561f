"""``airyard sim``: the deterministic simulator and the replay of traces, imported only here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from airyard.cli.app import App, VerbGroup, pass_app

if TYPE_CHECKING:
    from airyard.sim.reliability.report import Study
    from airyard.sim.trace.comparison import Comparison, Failures, Source
    from airyard.sim.trace.engine import Rules
    from airyard.sim.trace.policies import Tuning
    from airyard.sim.trace.recorded import Seen
    from airyard.sim.trace.whatif import WhatIf

F = TypeVar("F", bound=Callable[..., Any])
POLICIES = ("fifo", "fill", "oracle", "airyard")
DAY_S = 86_400
TERMINAL_S, FILE_S = 0.5, 15.0
LINE_AWAY = "\r\x1b[K"


class Span(click.ParamType["int | None"]):
    """A duration as 90s, 30m, 2h or 7d, in ms; ``none`` where that is allowed."""

    name = "duration"

    def __init__(self, *, none: bool = False) -> None:
        self._none = none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Read the text."""
        if isinstance(value, int) or (self._none and value == "none"):
            return value if isinstance(value, int) else None
        from airyard.spec.fields import duration_s

        try:
            return 1000 * duration_s(value)
        except ValueError as error:
            return self.fail(str(error) + (", or `none`" if self._none else ""), param, ctx)


class Names(click.ParamType[Sequence[str]]):
    """Some of a few names, separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Sequence[str]:
        """Read the text."""
        names = [name.strip().lower() for name in value.split(",") if name.strip()]
        if unknown := [name for name in names if name not in POLICIES]:
            self.fail(f"{', '.join(unknown)}: there are {', '.join(POLICIES)}", param, ctx)
        return names or self.fail("it names no policy", param, ctx)


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_YARD = (
    click.option(
        "--format",
        "form",
        type=click.Choice(["philly", "sacct"]),
        default="philly",
        help="What FILE is: CSV submit_s,duration_s,gpus,team (philly), or `sacct --parsable2` (sacct).",
    ),
    click.option("--gpus", type=click.IntRange(1, 1_000_000), help="GPUs of the yard; needed without nodes."),
    click.option("--gpus-per-node", type=click.IntRange(1, 64), default=8, help="GPUs of each node (8)."),
    click.option("--nodes-file", type=FILE, help="With sacct: the output of `scontrol show nodes`."),
    click.option("--associations", type=FILE, help="With sacct: `sacctmgr show assoc --parsable2`."),
    click.option("--qos", type=FILE, help="With sacct: `sacctmgr show qos --parsable2`."),
    click.option("--topology", type=FILE, help="With sacct: `scontrol show topology`."),
    click.option("--first", type=click.IntRange(1), help="Replay only the first N runs."),
    click.option("--policy", type=FILE, help="A yard.yaml whose pools and projects Airyard is given."),
)
_RULES = (
    click.option(
        "--order", type=click.Choice(["fifo", "fair", "predicted"]), help="Airyard's order (as declared)."
    ),
    click.option("--ageing", type=Span(), help="Airyard's ageing bound (as declared)."),
    click.option("--slicing/--no-slicing", default=None, help="Time slicing in all pools, or in none."),
    click.option(
        "--reservations",
        type=click.IntRange(0, 1000),
        help="Blocked runs of a pool that hold devices (as declared).",
    ),
    click.option(
        "--checkpoint-interval",
        type=Span(none=True),
        default="1h",
        help="Work between checkpoints, or none (1h).",
    ),
    click.option(
        "--preemption-cost", type=Span(), default="60s", help="How long an evicted run takes to leave (60s)."
    ),
    click.option(
        "--no-last-checkpoint",
        is_flag=True,
        help="An evicted run saves nothing more: it loses its work since its newest checkpoint.",
    ),
    click.option(
        "--failures-per-gpu-day", type=click.FloatRange(0), default=0.0, help="Rate at which nodes fail (0)."
    ),
    click.option("--repair", type=Span(), default="4h", help="How long a failed node is away (4h)."),
    click.option("--seed", type=int, default=0, help="Which failures are drawn (0)."),
)


def _with(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.group("sim", cls=VerbGroup)
def command() -> None:
    """Simulate: the control plane under faults, a trace, changes of the yard, months of a fleet that breaks."""


@command.command("run", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="--seed N [--trace]")
@pass_app
def run(app: App, arguments: tuple[str, ...]) -> int:
    """Run the control plane in simulated time with seeded faults; same seed, same journal."""
    cli = import_module("airyard.sim.cli")
    extra = ["-o", "json"] if app.as_json and "-o" not in arguments else []
    return int(cli.main(["run", *arguments, *extra]) or 0)


@command.command("trace")
@click.argument("file", type=FILE)
@click.option(
    "--policies",
    type=Names(),
    default=",".join(POLICIES),
    help="Which to compare (fifo,fill,oracle,airyard).",
)
@_with(_YARD)
@_with(_RULES)
@pass_app
def trace(app: App, file: Path, policies: Sequence[str], **options: Any) -> None:
    """Replay a recorded trace through the planner, beside FIFO and an oracle.

    \b
    airyard sim trace trace.csv.xz --gpus 512
    airyard sim trace sacct.txt --format sacct --nodes-file nodes.txt
    """
    from airyard.sim.trace.comparison import compare, read_setting
    from airyard.sim.trace.policies import Contender

    setting = read_setting(_source(file, options))
    tuning, rules, failures = _settings(options)
    with _Progress() as progress:
        found = compare(
            setting,
            [Contender(name) for name in policies],
            tuning=tuning,
            rules=rules,
            failures=failures,
            stopwatch=time.perf_counter,
            progress=progress.tell,
        )
    _show(app, found)


@command.command("what-if")
@click.option(
    "--change",
    "changes",
    multiple=True,
    required=True,
    metavar="TEXT",
    help="`pool P +N nodes`, `pool P order fair`, `pool P slicing on`, `project X guarantee N`, ... Repeatable.",
)
@click.option("--trace", "file", type=FILE, help="Replay this trace instead of what the yard has recorded.")
@click.option("--days", type=click.IntRange(1, 3650), default=30, help="Replay runs of so many days (30).")
@_with(_YARD)
@_with(_RULES)
@pass_app
def what_if(app: App, changes: Sequence[str], file: Path | None, days: int, **options: Any) -> None:
    """Replay recorded demand before and after changes of the yard.

    \b
    airyard sim what-if --change "pool h100 +4 nodes"
    airyard sim what-if --change "project nlp guarantee 8" --change "pool h100 order fair"
    """
    from airyard.sim.trace import changes as language
    from airyard.sim.trace.comparison import read_setting
    from airyard.sim.trace.recorded import Seen
    from airyard.sim.trace.whatif import what_if as compared

    parsed = [language.parse_change(text) for text in changes]
    tuning, rules, failures = _settings(options)
    setting = read_setting(_source(file, options)) if file else _recorded(app, days, options)
    with _Progress() as progress:
        found = compared(
            setting.demand,
            setting.policy,
            parsed,
            source=setting.source,
            tuning=tuning,
            rules=rules,
            failures=failures,
            stopwatch=time.perf_counter,
            progress=progress.tell,
            notes=setting.notes if isinstance(setting, Seen) else (),
        )
    _show(app, found)


@command.command("reliability")
@click.option("--gpus", type=click.IntRange(8, 100_000), default=1024, help="GPUs of the run (1024).")
@click.option("--days", type=click.FloatRange(0.1, 3650), default=60.0, help="So many days (60).")
@click.option("--rate", default="rsc1", metavar="NAME", help="rsc1, rsc2, llama3, or another of the file.")
@click.option("--seeds", type=click.IntRange(1, 1000), help="Seeds 1 to N (8).")
@click.option("--seed", type=int, help="One seed instead.")
@click.option("--assumptions", type=FILE, help="A file like src/airyard/sim/reliability/assumptions.toml.")
@pass_app
def reliability(
    app: App, gpus: int, days: float, rate: str, seeds: int | None, seed: int | None, assumptions: Path | None
) -> None:
    """Live through months of a long run on a fleet that breaks, with health and without; same seed, same figures."""
    from airyard.sim.reliability.assumptions import load
    from airyard.sim.reliability.report import study
    from airyard.sim.reliability.study import Question

    try:
        known = load(assumptions) if assumptions else load()
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{assumptions}: {error}") from None
    if rate not in known.rates:
        raise click.UsageError(f"--rate {rate}: there are {', '.join(known.rates)}")
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed is one seed, --seeds are several: give one of them")
    question = Question(gpus=gpus, days=days, rate=rate)
    _show(app, study(known, question, [seed] if seed is not None else range(1, (seeds or 8) + 1)))


def _show(app: App, found: Comparison | WhatIf | Study) -> None:
    if app.as_json:
        app.console.data(found.as_json())
    else:
        app.console.text(found.as_text())


def _recorded(app: App, days: int, options: dict[str, Any]) -> Seen:
    """Fetch the demand of the user's own yard: ended runs, nodes, policy."""
    from airyard.sim.trace.recorded import seen

    for name in ("gpus", "nodes_file", "associations", "qos", "topology"):
        if options[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --trace.")
    return seen(
        app.client.nodes(),
        app.client.pages(state="ended"),
        app.client.policy()["policy"],
        since_ms=int((time.time() - days * DAY_S) * 1000),
        days=days,
        file=options["policy"],
        first=options["first"],
    )


def _source(file: Path, options: dict[str, Any]) -> Source:
    from airyard.sim.trace.comparison import Source, TraceFormat

    more = [options[name] for name in ("nodes_file", "associations", "qos", "topology") if options[name]]
    return Source(
        file=file,
        format=TraceFormat(options["form"]),
        more=tuple(more),
        gpus=options["gpus"],
        gpus_per_node=options["gpus_per_node"],
        first=options["first"],
        policy=options["policy"],
    )


def _settings(options: dict[str, Any]) -> tuple[Tuning, Rules, Failures]:
    from airyard.core.policy import PoolOrder
    from airyard.sim.trace.comparison import Failures
    from airyard.sim.trace.engine import Rules
    from airyard.sim.trace.policies import Tuning

    tuning = Tuning(
        order=PoolOrder(options["order"]) if options["order"] else None,
        ageing_ms=options["ageing"],
        slicing=options["slicing"],
        reservations=options["reservations"],
    )
    rules = Rules(
        eviction_ms=options["preemption_cost"],
        last_checkpoint=not options["no_last_checkpoint"],
        checkpoint_ms=options["checkpoint_interval"],
    )
    failures = Failures(
        per_gpu_day=options["failures_per_gpu_day"], repair_ms=options["repair"], seed=options["seed"]
    )
    return tuning, rules, failures


class _Progress:
    """Tells on stderr how far a replay is: on a terminal in one line that changes, else in a line now and then."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last_s = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._write(LINE_AWAY)

    def tell(self, title: str, arrived: int, total: int, waiting: int) -> None:
        """Say how many runs have come and how many of them wait."""
        now_s = time.monotonic()
        if now_s - self._last_s >= (TERMINAL_S if self._live else FILE_S):
            self._last_s = now_s
            line = f"{title}: {arrived:,} of {total:,} runs have come, {waiting:,} wait"
            self._write(f"{LINE_AWAY}{line}" if self._live else f"{line}\n")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
