"""What every verb shares: the common options, the client and console they lead to, the command class.

Owns: `-o`, `--host`, `--profile`, `--home`, `--color`, `--debug`, before or after the verb.
Must not know: any verb.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any

import click

from airyard.cli.console import Console
from airyard.core.errors import AiryardError
from airyard.sdk.client import Client


class App:
    """The state of one command: its common options, and what is built from them on first use."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    @cached_property
    def console(self) -> Console:
        """Where this command prints."""
        return Console(as_json=self.as_json, colour=self.options.get("color") or "auto")

    @cached_property
    def client(self) -> Client:
        """The client of the server that options, environment and configuration name."""
        return Client(
            host=self.options.get("host"),
            profile=self.options.get("profile"),
            home=self.options.get("home"),
            announce=lambda line: self.console.note(f"airyard: {line}"),
        )

    @property
    def as_json(self) -> bool:
        """True with ``-o json``."""
        return self.options.get("output") == "json"


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and parameter.name is not None:
        context.ensure_object(App).options[parameter.name] = value


def common_options() -> list[click.Parameter]:
    """Return fresh copies of the options that every command takes."""

    def option(*names: str, **settings: Any) -> click.Option:
        settings = {"expose_value": False, "callback": _remember, "default": None, **settings}
        return click.Option(names, **settings)

    return [
        option(
            "-o", "--output", type=click.Choice(["text", "json"]), help="Text for people (default), or JSON."
        ),
        option("--host", metavar="URL", help="Server to use instead of the configured one."),
        option("--profile", metavar="NAME", help="Use this profile of config.toml or ~/.databrickscfg."),
        option("--home", metavar="DIR", help="Data folder of the local server (AIRYARD_HOME, ~/.airyard)."),
        option("--color", type=click.Choice(["auto", "always", "never"]), help="When to colour (auto)."),
        option("--debug", is_flag=True, flag_value=True, help="Show where an error came from."),
    ]


class Verb(click.Command):
    """A command that takes the common options too, listed apart in its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {}).setdefault("help_option_names", ["-h", "--help"])
        super().__init__(*args, **kwargs)
        self._common = common_options()
        self.params += self._common

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verb's own options, then one line for the common ones."""
        own = [
            record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and parameter not in self._common
            and (record := parameter.get_help_record(ctx)) is not None
        ]
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        formatter.write_paragraph()
        formatter.write_text("Also: -o json, --host, --profile, --home, --color, --debug (`airyard --help`).")


class VerbGroup(click.Group):
    """A verb with verbs below it (``secrets put``)."""

    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {}).setdefault("help_option_names", ["-h", "--help"])
        super().__init__(*args, **kwargs)
        self.params += common_options()


def pass_app(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function the App as its first argument."""

    @wraps(function)
    def with_app(*args: Any, **kwargs: Any) -> Any:
        return function(click.get_current_context().ensure_object(App), *args, **kwargs)

    return with_app


def verb(name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function the verb ``name``; it gets the App first."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        settings.setdefault("cls", Verb)
        make: Callable[[Callable[..., Any]], click.Command] = click.command(name, **settings)
        return make(pass_app(function))

    return decorate


def key_values(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Read repeated ``k=v`` arguments. Raises: click.BadParameter for one without ``=``."""
    out: dict[str, str] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE.", param_hint=option)
        out[key] = value
    return out


def refusal_of(error: AiryardError, ref: object) -> AiryardError:
    """Note in an error which of several references it is about: ``details.ref``, for programs."""
    error.details.setdefault("ref", ref)
    return error


def confirm(question: str) -> None:
    """Ask on stderr and return when the answer is yes.

    Raises: click.Abort for a no or Ctrl-C, click.UsageError where nobody can answer.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("There is nobody to ask here; -y goes ahead without asking.") from None
    if not agreed:
        raise click.Abort
