"""``airyard fleet``: machines brought into the fleet over SSH, listed, and taken out again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airyard.cli import formats
from airyard.cli.app import App, VerbGroup, key_values, pass_app
from airyard.cli.exit_codes import ExitCode
from airyard.cli.moments import SpanType
from airyard.core.errors import AiryardError, UserError

if TYPE_CHECKING:
    from airyard.node.remote.adding import Wanted
    from airyard.node.remote.ssh import Access
    from airyard.node.remote.target import Target

AT_ONCE = 16
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("fleet", cls=VerbGroup)
def command() -> None:
    """Bring machines into the fleet over SSH, and take them out. They need an SSH server and Python, no more."""


def _access_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every verb that logs in takes."""
    for option in (
        click.argument("hosts", metavar="ssh://USER@HOST[:PORT]...", nargs=-1, required=True),
        click.option(
            "--identity", type=FILE, metavar="FILE", help="Private key to log in with (ssh's own choice)."
        ),
        click.option("--ssh-config", type=FILE, metavar="FILE", help="Instead of ~/.ssh/config."),
        click.option(
            "--accept-new-host-keys",
            is_flag=True,
            help="Take the keys of hosts that are not known yet on trust.",
        ),
        click.option(
            "--node-home",
            default="~/.airyard",
            metavar="DIR",
            help="Data folder there (~/.airyard of that user).",
        ),
        click.option(
            "--use-airyard",
            default="",
            metavar="PATH",
            help="An `airyard` that is there already: nothing is installed.",
        ),
    ):
        function = option(function)
    return function


@command.command("add")
@_access_options
@click.option(
    "--server", metavar="HOST:PORT", help="The fleet's server, as the hosts reach it (this yard's)."
)
@click.option("--token-file", type=FILE, metavar="FILE", help="The fleet's token (this yard's).")
@click.option(
    "--ca-file",
    type=FILE,
    envvar="AIRYARD_CA_FILE",
    metavar="FILE",
    help="The CA of the server's certificate (PEM), handed over to the hosts (this yard's).",
)
@click.option("--pool", metavar="POOL", help="Short for --label pool=POOL.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Label of their nodes. Repeatable.")
@click.option("--simulated", multiple=True, metavar="TYPE=N", help="Simulated nodes there. Repeatable.")
@click.option("--cpu-slots", type=click.IntRange(0, 4096), help="CPU nodes (at least 4, as many as cores).")
@click.option("--interface", metavar="IF", help="Network interface there for runs (detected).")
@click.option("--address", metavar="IP", help="Address of the machine for the others; for one host.")
@click.option("--name", metavar="NAME", help="Its name in the fleet (its host name); for one host.")
@click.option("--python", default="", metavar="PATH", help="Python there (found; the server's very version).")
@click.option(
    "--index-url", default="", metavar="URL", help="Package index, as the hosts reach it (their own)."
)
@click.option(
    "--wheelhouse",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Wheels from here, for hosts that reach no index (`airyard fleet lock`).",
)
@click.option("--no-service", is_flag=True, help="Write no systemd unit: after a reboot they are not back.")
@pass_app
def add(app: App, hosts: tuple[str, ...], wheelhouse: Path | None, **given: Any) -> int:
    """Log in to each host, install this version of Airyard there, and join it to the fleet.

    Again on a host that is in: it is upgraded or joined anew where something differs, and else left as it is. The
    token goes over the connection, never onto a command line.

    \b
    airyard fleet add ssh://ops@10.0.0.11 ssh://ops@10.0.0.12 --pool h100
    airyard fleet add ssh://ops@gpu7:2222 --identity ~/.ssh/fleet --accept-new-host-keys
    """
    from airyard.node.remote import payload
    from airyard.node.remote.adding import Added, add_host

    targets = _targets(hosts)
    if len(targets) > 1 and (given["name"] or given["address"]):
        raise click.UsageError("--name and --address are one host's; add the hosts one by one.")
    wanted, access = _wanted(app, given), _access(given)
    carried = None if wanted.use_airyard else payload.make(wheelhouse)

    def one(target: Target) -> Added:
        return add_host(target, access, wanted, carried, app.console.note)

    results = _each(targets, one)
    _remember(app, {str(done.target): done for _, done in results if isinstance(done, Added)})
    documents = [_document(target, done) for target, done in results]
    if app.as_json:
        app.console.data({"hosts": documents})
    else:
        _show(app, documents)
    return _exit_code([done for _, done in results])


@command.command("remove")
@_access_options
@click.option(
    "--within", "within_s", type=SpanType(), metavar="SPAN", help="Have the runs there leave first, by then."
)
@click.option("--force", is_flag=True, help="Leave though members live there: they go on until they end.")
@click.option("--purge", is_flag=True, help="Remove what was installed and the node's data, too.")
@pass_app
def remove(
    app: App, hosts: tuple[str, ...], within_s: int | None, force: bool, purge: bool, **given: Any
) -> int:
    """Take hosts out of the fleet: drain them (--within), leave, forget the service."""
    from airyard.node.remote.adding import Wanted, remove_host

    access = _access(given)
    wanted = Wanted(server="", token="", home=given["node_home"], use_airyard=given["use_airyard"])
    results = _each(
        _targets(hosts),
        lambda target: remove_host(target, access, wanted, within_s=within_s, force=force, purge=purge),
    )
    documents: list[dict[str, Any]] = []
    for target, done in results:
        failed = isinstance(done, AiryardError)
        documents.append(
            _failure(target, done) if failed else {"host": str(target), "state": "removed", **done}
        )
    _remember(app, {}, forget=[each["host"] for each in documents if each["state"] == "removed"])
    if app.as_json:
        app.console.data({"hosts": documents})
    else:
        for each in documents:
            if each["state"] == "removed":
                what = "left the fleet" if each["left"] else "was in no fleet"
                live = f"; {len(each['members'])} members live on" if each["members"] else ""
                app.console.text(
                    f"{each['host']} {what}{live}{', and holds nothing more' if each['purged'] else ''}"
                )
        _explain(app, documents)
    return _exit_code([done for _, done in results])


@command.command("list")
@pass_app
def list_(app: App) -> None:
    """List the hosts that were added from here, and whether their machines are there."""
    notes = _notes(app)
    try:
        alive = {node["machine"] for node in app.client.nodes() if node["alive"]}
    except AiryardError:
        alive = None
    found = [
        {"host": host, **note, "alive": None if alive is None else note["machine"] in alive}
        for host, note in sorted(notes.items())
    ]
    if app.as_json:
        app.console.data({"hosts": found})
    elif not found:
        app.console.note("No host was added from here.")
    else:
        words = {None: "unknown", True: "there", False: "away"}
        rows = [
            [each["host"], each["machine"], words[each["alive"]], each["home"], each["service"]]
            for each in found
        ]
        app.console.text(formats.table(("HOST", "MACHINE", "STATE", "DATA FOLDER", "AFTER A REBOOT"), rows))


@command.command("lock")
@pass_app
def lock(app: App) -> None:
    """Print the packages that a machine of the fleet needs, with hashes, for `pip download` into a --wheelhouse."""
    from airyard.node.remote.payload import LOCK

    app.console.write(LOCK.read_text(encoding="utf-8"))


def _targets(hosts: Sequence[str]) -> list[Target]:
    from airyard.node.remote.target import parse_target

    try:
        return [parse_target(text) for text in dict.fromkeys(hosts)]
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def _access(given: dict[str, Any]) -> Access:
    from airyard.node.remote.ssh import Access

    return Access(
        identity=given["identity"],
        config=given["ssh_config"],
        accept_new_host_keys=given["accept_new_host_keys"],
    )


def _wanted(app: App, given: dict[str, Any]) -> Wanted:
    """Return how the hosts join; checks that the server is there and that the token is its. Raises: AiryardError."""
    from airyard.node.joining import Desk, read_token
    from airyard.node.remote.adding import Wanted
    from airyard.node.trust import kept_ca

    home = _home(app)
    token = read_token(given["token_file"] or home / "server" / "ray" / "token")
    server = given["server"] or _own_server(home)
    ca_file = given["ca_file"] or kept_ca(home / "node")
    Desk(server, token, ca_file).check()
    arguments: list[str] = []
    for name in ("pool", "name", "address", "interface", "cpu_slots"):
        if given[name] is not None:
            arguments += [f"--{name.replace('_', '-')}", str(given[name])]
    for key, value in sorted(key_values(given["labels"], "--label").items()):
        arguments += ["--label", f"{key}={value}"]
    for each in given["simulated"]:
        arguments += ["--simulated", each]
    return Wanted(
        server=server,
        token=token,
        ca=ca_file.read_text() if ca_file is not None else "",
        arguments=tuple(arguments),
        home=given["node_home"],
        python=given["python"],
        use_airyard=given["use_airyard"],
        index_url=given["index_url"],
        service=not given["no_service"],
    )


def _own_server(home: Path) -> str:
    try:
        endpoint = json.loads((home / "server" / "endpoint.json").read_text())
        host, url = str(endpoint["host"]), str(endpoint["url"])
    except (OSError, ValueError, KeyError):
        raise UserError(
            f"No server of {home} runs on this machine.",
            code="NO_SERVER",
            fix="Run this on the server's machine, or name it with --server and --token-file.",
        ) from None
    if host.startswith("127.") or host in ("::1", "localhost"):
        raise UserError(
            f"This server listens on {host} only: other machines could not reach it.",
            code="SERVER_ON_LOOPBACK",
            fix="Start it with `airyard server --host ADDRESS --engine ray`.",
        )
    return url


def _each(targets: Sequence[Target], work: Callable[[Target], Any]) -> list[tuple[Target, Any]]:
    """Do the work for all targets side by side; what is wrong with one is its result."""

    def guarded(target: Target) -> Any:
        try:
            return work(target)
        except AiryardError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(targets))) as pool:
        return list(zip(targets, pool.map(guarded, targets), strict=True))


def _document(target: Target, done: Any) -> dict[str, Any]:
    if isinstance(done, AiryardError):
        return _failure(target, done)
    return {
        "host": str(target),
        "state": done.state,
        "machine": done.machine,
        "address": done.address,
        "nodes": list(done.nodes),
        "service": done.service,
    }


def _failure(target: Target, error: AiryardError) -> dict[str, Any]:
    return {"host": str(target), "state": "failed", "error": error.as_json()}


def _show(app: App, documents: list[dict[str, Any]]) -> None:
    rows = []
    for each in documents:
        if each["state"] == "failed":
            rows.append([each["host"], "failed", "", each["error"]["code"]])
        else:
            nodes = f" ({len(each['nodes'])} nodes)" if each["nodes"] else ""
            rows.append([each["host"], each["state"], f"{each['machine']}{nodes}", each["service"]])
    app.console.text(formats.table(("HOST", "STATE", "MACHINE", "AFTER A REBOOT"), rows))
    _explain(app, documents)


def _explain(app: App, documents: list[dict[str, Any]]) -> None:
    for each in documents:
        if each["state"] != "failed":
            continue
        error = each["error"]
        app.console.note(f"{each['host']}: {error['code']}: {error['message']}")
        if error["fix"]:
            command_ = error["fix"].get("command")
            app.console.note(f"  next: {error['fix']['text']}" + (f" `{command_}`" if command_ else ""))


def _exit_code(results: Sequence[Any]) -> int:
    """All went well, some did, or none: then the first one's code."""
    failed = [each for each in results if isinstance(each, AiryardError)]
    if not failed:
        return ExitCode.SUCCESS
    return failed[0].exit_code if len(failed) == len(results) else ExitCode.PARTIAL


def _home(app: App) -> Path:
    from airyard.sdk import config

    return config.home_folder(app.options.get("home")).absolute()


def _notes(app: App) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((_home(app) / "fleet.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(app: App, added: dict[str, Any], forget: Sequence[str] = ()) -> None:
    """Keep a note of what was added from here, for ``list``; nothing depends on it."""
    notes = {host: note for host, note in _notes(app).items() if host not in forget}
    for host, done in added.items():
        before = notes.get(host, {}).get("service", "")
        service = done.service if done.state != "unchanged" else before
        notes[host] = {"machine": done.machine, "home": done.home, "service": service}
    path = _home(app) / "fleet.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(".fleet.json")
    temporary.write_text(json.dumps(notes, indent=1, sort_keys=True))
    temporary.replace(path)
