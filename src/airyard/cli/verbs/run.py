"""``airyard run``: submit a workload file, or a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from airyard.cli import explain_text, formats, run_text, watching
from airyard.cli.app import App, Verb, key_values, verb
from airyard.cli.exit_codes import ExitCode
from airyard.cli.moments import NOW, MomentType
from airyard.core.errors import UserError

if TYPE_CHECKING:
    from airyard.sdk.submission import Submission

DEFAULT_FILE = "workload.yaml"
WORDS = "airyard.command"
"""Where the words after ``--`` wait, in click's context."""
FOR_COMMAND = ("gpus", "model", "cpu", "nodes", "experiment", "code")


def _help(context: click.Context, _: click.Parameter, topic: str | None) -> None:
    if topic is None or context.resilient_parsing:
        return
    if not topic:
        click.echo(context.get_help())
    elif topic == "config" or topic.startswith("config."):
        from airyard.spec.help import field_help

        click.echo(field_help(topic))
    else:
        raise click.UsageError(
            f"Help on {topic!r}? `-h` is about the command, `-h config.FIELD` about a field."
        )
    context.exit()


class RunVerb(Verb):
    """Keeps what stands after the first ``--`` apart from a file before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the command away, parse the rest."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[WORDS] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


@verb("run", cls=RunVerb, add_help_option=False)
@click.argument("path", metavar="[FILE] [-- CMD...]", required=False)
@click.option("-f", "--file", metavar="FILE", help=f"The workload file (./{DEFAULT_FILE}).")
@click.option("--name", help="Name of the run; it can be used as its ID.")
@click.option("--tag", "tags", metavar="K=V", multiple=True, help="Tag of the run; repeatable.")
@click.option("-w", "--watch", "watched", is_flag=True, help="Follow it to its end and exit as it did.")
@click.option("--override", "overrides", metavar="K=V", multiple=True, help="Replace a field; repeatable.")
@click.option("--hold", is_flag=True, help="Let it wait for `airyard release`.")
@click.option(
    "--begin", type=MomentType(), metavar="TIME", help="Not before: 08:00, '2026-12-02 08:00', +90m."
)
@click.option("--dry-run", is_flag=True, help="Check, and ask the planner, without submitting.")
@click.option("--idempotency-key", metavar="K", help="Same key, same run: safe to repeat.")
@click.option("--allow-secret-files", is_flag=True, help="Send files that look like secrets too.")
@click.option("--propagate", is_flag=True, help="With --watch: exit with the command's own code.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="For CMD: GPUs per node.")
@click.option("--model", metavar="MODEL", help="For CMD: which GPUs, where there are several (H100).")
@click.option("--cpu", is_flag=True, help="For CMD: no GPU.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="For CMD: nodes (1).")
@click.option("--experiment", metavar="NAME", help="For CMD: the experiment (named after the program).")
@click.option("--code", is_flag=True, help="For CMD: send the current folder along.")
@click.option(
    "-h",
    "--help",
    is_flag=False,
    flag_value="",
    is_eager=True,
    expose_value=False,
    callback=_help,
    metavar="[config.FIELD]",
    help="This text, or what a field of the workload file means.",
)
def command(app: App, **given: Any) -> int:
    """Submit a workload file, or a command after `--`.

    \b
    airyard run -f workload.yaml --watch
    airyard run --override parameters.lr=0.1
    airyard run --gpus 2 --nodes 2 --code -- python train.py
    airyard run -h config.compute.accelerator_type
    """
    words: list[str] | None = click.get_current_context().meta.get(WORDS)
    check_usage(given, words)
    return submit(app, given, words)


def check_usage(given: dict[str, Any], words: list[str] | None) -> None:
    """Raise click.UsageError for a mix of file and command, or options that belong to the other."""
    if given["file"] and given["path"]:
        raise click.UsageError("One workload file, please.")
    if words is None:
        options = ["--" + name for name in FOR_COMMAND if given[name]]
        if options:
            raise click.UsageError(f"{', '.join(options)}: for a command, airyard run --gpus 1 -- CMD...")
        return
    if given["file"] or given["path"]:
        raise click.UsageError("A workload file and a command exclude each other.")
    if given["gpus"] and given["cpu"]:
        raise click.UsageError("--gpus and --cpu exclude each other.")
    if given["model"] and not given["gpus"]:
        raise click.UsageError("--model says which GPUs; how many on each node is --gpus N.")


def submit(app: App, given: dict[str, Any], words: list[str] | None) -> int:
    """Read, send, and watch when asked; return the exit code."""
    from airyard.sdk import submission

    prepared = _prepare(app, given, words)
    for warning in prepared.loaded.warnings:
        app.console.note(f"warning: {warning}", "yellow")
    if not prepared.sends_code and not app.as_json:
        app.console.note("no code_source: no code is sent", "dim")
    answer = submission.submit(
        app.client,
        prepared,
        idempotency_key=given["idempotency_key"],
        allow_secret_files=given["allow_secret_files"],
        dry_run=given["dry_run"],
        held=given["hold"],
        begin_at=None if given["begin"] == NOW else given["begin"],
        say=lambda line: app.console.note(line, "dim"),
    )
    if given["dry_run"]:
        return _show_dry_run(app, answer)
    # What the file's own check said, with its line, need not be said again by the server.
    said = [warning.path.split(".")[0].removesuffix("_name") for warning in prepared.loaded.warnings]
    told = answer.get("warnings") or []
    answer["warnings"] = [text for text in told if not any(str(text).startswith(root) for root in said)]
    return show_submitted(app, answer, watched=given["watched"], propagate=given["propagate"])


def _prepare(app: App, given: dict[str, Any], words: list[str] | None) -> Submission:
    from airyard.sdk import submission
    from airyard.spec.command_line import CommandLine

    tags = key_values(given["tags"], "--tag")
    extra: dict[str, Any] = {"overrides": given["overrides"], "name": given["name"], "tags": tags}
    if words is None:
        return submission.prepare(given["file"] or given["path"] or DEFAULT_FILE, **extra)
    if not given["gpus"] and not given["cpu"]:
        app.console.note("no --gpus: it runs on the CPU", "dim")
    line = CommandLine(
        command=words,
        gpus=given["gpus"] or 0,
        nodes=given["nodes"] or 1,
        model=given["model"],
        experiment=given["experiment"],
        send_code=given["code"],
    )
    models = _models(app, line.gpus) if line.gpus and not line.model else []
    return submission.prepare_command(line, models=models, **extra)


def _models(app: App, gpus: int) -> list[str]:
    """Return the accelerator models of which a node has enough devices.

    Raises: UserError when the yard has GPUs, but no node so many.
    """
    counts: dict[str, int] = {}
    for pool in app.client.pools():
        count, _, model = str(pool["accelerator"]).removeprefix("GPU_").partition("x")
        if model and count.isdigit() and pool.get("nodes", 1):
            counts[model] = max(int(count), counts.get(model, 0))
    found = sorted(model for model, count in counts.items() if count >= gpus)
    if counts and not found:
        most = max(counts.values())
        raise UserError(
            f"No node of this yard has {gpus} GPUs; the largest has {most}.",
            code="NO_SUCH_ACCELERATOR",
            fix=f"--gpus counts per node; over several nodes it is `--gpus {most} --nodes N`.",
        )
    return found


def show_submitted(app: App, answer: dict[str, Any], *, watched: bool, propagate: bool = False) -> int:
    """Say what was submitted; then watch it when asked."""
    run, existing = answer["run"], bool(answer.get("existing"))
    for warning in answer.get("warnings") or ():
        text = warning.get("message") if isinstance(warning, dict) else warning
        app.console.note(f"warning: {text}", "yellow")
    if app.as_json and watched:
        app.console.event("SUBMITTED", {"run_id": run["run_id"], "existing": existing, "run": run})
    elif app.as_json:
        app.console.data({"run_id": run["run_id"], "existing": existing, "run": run})
    else:
        what = "exists already (same idempotency key)" if existing else "submitted"
        what += ", held" if run.get("held") else ""
        line = f"run {run['run_id']} {what}: {run_text.label(run)} on {run_text.gang(run)}"
        if watched:
            app.console.note(line)
        else:
            app.console.text(line)
            follow = f"`airyard watch {run['run_id']}` follows it"
            release = f"`airyard release {run['run_id']}` lets it go"
            app.console.note(release if run.get("held") else follow, "dim")
    return watching.watch(app.client, app.console, run, propagate=propagate) if watched else ExitCode.SUCCESS


_DRY_RUN_NAMES = {"eta": "expected"}


def _show_dry_run(app: App, answer: dict[str, Any]) -> int:
    document = {**answer["dry_run"], "upload": answer.get("upload")}
    if app.as_json:
        app.console.data({"status": "DRY_RUN_OK", "dry_run": document})
        return ExitCode.SUCCESS
    upload = document.pop("upload")
    pairs: list[tuple[str, object]] = [("dry run", "ok, nothing was submitted")]
    for key, value in document.items():
        if key == "counterfactuals":
            texts = [explain_text.would_start(one) for one in value]
            pairs += [("" if place else "would start", text) for place, text in enumerate(texts)]
            continue
        plain = _environment_text(value) if key == "environment" else _plain(value)
        plain = explain_text.starts(value) if key == "eta" else plain
        pairs.append((_DRY_RUN_NAMES.get(key, key.replace("_", " ")), plain))
    if upload:
        need = (
            formats.size(upload["archive_bytes"]) if upload["needed"] else "nothing, the server has this code"
        )
        pairs.append(("upload", need))
    app.console.text(formats.fields(pairs))
    return ExitCode.SUCCESS


def _environment_text(environment: dict[str, Any]) -> str:
    """Say whether the run would have to wait for its environment."""
    if environment["cached"]:
        return "cached"
    count = environment["dependencies"]
    dependencies = f"{count} {'dependency' if count == 1 else 'dependencies'}"
    if environment["cached"] is None:
        return f"not known, the node's agent did not answer ({dependencies})"
    return f"will be built ({dependencies})"


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return value.get("message") or ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return ", ".join(str(_plain(item)) for item in value) if isinstance(value, list) else value
