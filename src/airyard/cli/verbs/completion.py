"""``airyard completion``: the script that makes a shell complete verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from airyard.cli.app import App, verb


@verb("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(app: App, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(airyard completion bash)"     in ~/.bashrc
    zsh:   eval "$(airyard completion zsh)"      in ~/.zshrc
    fish:  airyard completion fish > ~/.config/fish/completions/airyard.fish
    """
    kind = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    assert kind is not None  # the choice above names only shells that click knows
    script = kind(root, {}, "airyard", "_AIRYARD_COMPLETE").source()
    if app.as_json:
        app.console.data({"shell": shell, "script": script})
    else:
        app.console.text(script)
