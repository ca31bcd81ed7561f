"""The entry point: finds the verb, imports only its module, and turns every ending into output and an exit code.

Owns: the list of verbs, the error boundary. Must not know: what a verb does.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from airyard import __version__
from airyard.cli.app import App, common_options
from airyard.cli.console import Console
from airyard.cli.exit_codes import ExitCode
from airyard.core.errors import AiryardError, InvariantBroken, UserError

SECTIONS: dict[str, dict[str, str]] = {
    "Runs": {
        "init": "Write a workload file to start from.",
        "run": "Submit a workload file, or a command after `--`.",
        "get": "Show one run: phases, attempts, nodes, failure.",
        "list": "List runs.",
        "queue": "Show what waits, in order, and why.",
        "logs": "Print or follow the logs of all nodes.",
        "watch": "Follow a run to its end and exit as it did.",
        "wait": "Wait for runs to end.",
        "cancel": "Stop runs.",
        "update": "Change runs: priority, project, time limit, begin.",
        "hold": "Keep queued runs from starting.",
        "release": "Let held runs go.",
        "rerun": "Submit a run again, changed or not, as a new run.",
        "resume": "Start a new attempt of an ended run.",
        "explain": "Say why a run is where it is, and what would help.",
        "metrics": "Read metrics back; pick the best run.",
        "pull": "Copy a run's output here.",
        "open": "Print the page of a run's experiment.",
        "rm": "Remove ended runs with their logs and tracking.",
    },
    "Yard": {
        "nodes": "List nodes and devices, or show one.",
        "cordon": "Close nodes for new work.",
        "uncordon": "Open nodes again.",
        "drain": "Empty nodes: their runs go on elsewhere.",
        "confirm-dead": "Say that a machine that is away is dead.",
        "pools": "List pools: what is free, guaranteed and borrowed.",
        "projects": "List projects: members, rights, budgets; who declared what.",
        "quota": "Show guarantees, use and shares per project and pool.",
        "apply": "Declare pools, projects and users from a yard.yaml.",
        "reserve": "Set nodes aside: for maintenance, or for a project.",
        "reservations": "List the nodes that are set aside.",
        "unreserve": "Take reservations back.",
        "status": "Show the server: version, address, disk, MLflow.",
        "up": "Start the local server.",
        "down": "Stop the local server.",
        "server": "Run a server in the foreground.",
        "node": "Let this machine join a fleet, or leave it.",
        "fleet": "Bring machines into the fleet over SSH, and take them out.",
        "secrets": "Store, list and delete secrets.",
        "login": "Log in at the yard's login provider.",
        "logout": "End the login.",
        "whoami": "Show who you are here, and how that is known.",
        "token": "Give out tokens, list them, take them back.",
        "admin": "Clean up, check, move and save the journal, read the audit.",
    },
    "Tools": {
        "doctor": "Check this machine and say what to fix.",
        "health": "Check this machine's GPUs and the rest of it.",
        "triage": "Say from logs why a run failed.",
        "schema": "Print the JSON Schema of the workload file.",
        "completion": "Print the completion script of a shell.",
        "sim": "Run the simulator.",
        "dev": "Try Airyard on many simulated machines.",
    },
}
VERBS = {name: text for section in SECTIONS.values() for name, text in section.items()}


class ReaderGone(Exception):
    """Nobody reads stdout any more."""


class Verbs(click.Group):
    """The top group: one module a verb, imported when that verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module and return its command."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"airyard.cli.verbs.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; an unknown one is answered with the nearest."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean `airyard {near[0]}`?" if near else " `airyard --help` lists the commands."
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb and write out what it printed; click itself would end a broken pipe with 1."""
        try:
            returned: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None
        return returned

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section without importing them."""
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


@click.command(
    cls=Verbs,
    params=common_options(),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Every command takes the options above. Exit codes: docs/cli.md.",
)
@click.version_option(__version__, message="airyard %(version)s")
def root() -> None:
    """Airyard: an open AI Runtime for your own yard."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Whoever closed a stream wants nothing of it; Python has None in its place, which nothing can be written to.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # as above
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(run(arguments))


def run(arguments: list[str], app: App | None = None) -> int:
    """Run the command line and return its exit code; everything is printed already."""
    app = app or App()
    try:
        returned = root.main(args=arguments, prog_name="airyard", standalone_mode=False, obj=app)
        sys.stdout.flush()
        return int(returned or 0)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("\n")
        return ExitCode.INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        # Nobody reads stdout any more: give Python's own flush at exit something that takes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.BROKEN_PIPE
    except click.exceptions.NoArgsIsHelpError as help_:
        click.echo(help_.format_message())
        return ExitCode.SUCCESS
    except click.ClickException as error:
        return _report(app, _usage(error), arguments)
    except AiryardError as error:
        return _report(app, error, arguments, cause=error)
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _report(app, UserError(f"{named}.", code="FILE"), arguments, cause=error)
    except Exception as error:
        bug = InvariantBroken(
            f"Airyard has a bug: {type(error).__name__}: {error}",
            fix="Run the same command with --debug and report what it prints.",
        )
        return _report(app, bug, arguments, cause=error)


def _report(app: App, error: AiryardError, arguments: list[str], cause: BaseException | None = None) -> int:
    if cause is not None and (app.options.get("debug") or "--debug" in arguments):
        import traceback

        traceback.print_exception(cause)
    Console(as_json=wants_json(arguments), colour=app.options.get("color") or "auto").error(error)
    return error.exit_code


def _usage(error: click.ClickException) -> UserError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "airyard"
    return UserError(error.format_message(), code="USAGE", fix=f"`{command} --help` shows what it takes.")


def wants_json(arguments: list[str]) -> bool:
    """True when ``-o json`` is among the arguments, also of a command line that could not be parsed."""
    wanted = False
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        following: Any = arguments[index + 1] if index + 1 < len(arguments) else None
        if argument in ("-o", "--output"):
            wanted = following == "json"
        elif argument in ("-ojson", "-o=json", "--output=json"):
            wanted = True
    return wanted
