"""``airyard status``: the server and what it holds. Starts none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airyard.cli import explain_text, formats
from airyard.cli.app import App, verb
from airyard.cli.exit_codes import ExitCode
from airyard.core.errors import Fix, Unavailable


@verb("status")
def command(app: App) -> int:
    """Show the server: version, address, ports, disk use, MLflow, containment. Starts no server."""
    if app.client.target.host is None:
        from airyard.sdk import embedded

        if embedded.find(app.client.target.home) is None:
            raise Unavailable(
                f"No local server runs for {app.client.target.home}.",
                code="NOT_RUNNING",
                fix=Fix(text="The next command starts one.", command="airyard up"),
            )
    found = app.client.status()
    if app.as_json:
        app.console.data(found)
        return ExitCode.SUCCESS
    app.console.text(formats.fields(_pairs(found)))
    return ExitCode.SUCCESS


def _pairs(found: dict[str, Any]) -> list[tuple[str, object]]:
    mlflow, cage, counts = (found.get(key) or {} for key in ("mlflow", "containment", "counts"))
    disk = found.get("disk") or {}
    journal = found.get("journal") or {}
    simulated = found.get("simulated")
    return [
        ("server", f"airyard {found.get('version')}, pid {found.get('pid')}"),
        ("to upgrade", _to_upgrade(found.get("versions") or {})),
        ("address", found.get("url")),
        ("started", formats.moment(found.get("started_at"))),
        ("data", found.get("home")),
        ("ports", _named(found.get("ports"))),
        ("engine", found.get("engine")),
        ("simulated", _named(simulated) if isinstance(simulated, dict) else simulated or None),
        ("runs", ", ".join(f"{count} {name}" for name, count in counts.items())),
        ("estimates", explain_text.estimates(found.get("estimates"))),
        *(
            (f"forecast of {pool}", _forecast(figures))
            for pool, figures in (found.get("forecast") or {}).items()
        ),
        ("mlflow", " · ".join(str(mlflow[key]) for key in ("kind", "detail", "uri") if mlflow.get(key))),
        ("access", _access(found.get("access") or {})),
        ("containment", containment_text(cage)),
        (
            "journal",
            f"{journal.get('seq')} events, {formats.size(journal.get('bytes'))}, in {journal.get('place')}"
            + (f"; it does not answer: {journal['problem']}" if journal.get("problem") else "")
            if journal
            else None,
        ),
        ("disk", ", ".join(f"{kind} {formats.size(octets)}" for kind, octets in disk.items())),
        *((f"{name} at", path) for name, path in (found.get("paths") or {}).items()),
    ]


def _to_upgrade(found: Mapping[str, Any]) -> str | None:
    """Say what is of an older release than the server, while an upgrade is under way."""
    machines = [f"{one['name']} ({one['version']})" for one in found.get("machines") or ()]
    runners = found.get("runners") or ()
    parts = [", ".join(machines)] if machines else []
    if runners:
        some = ", ".join(runners[:5]) + (", …" if len(runners) > 5 else "")
        parts.append(
            f"started by an older release, and to end before the next upgrade: {len(runners)} members ({some})"
        )
    return " · ".join(parts) or None


def _access(found: Mapping[str, Any]) -> str | None:
    """Say who one is here, and what an operator should know of how others get in."""
    you = found.get("you")
    if not you:
        return None
    parts = [f"you are {you['name']} ({you['role']})"]
    if you.get("token_id"):
        project = f" in project {you['project']}" if you.get("project") else ""
        parts.append(f"token {you['token_id']} of scope {you['scope']}{project}")
    if found.get("insecure"):
        parts.append("INSECURE: plain HTTP beyond this machine")
    if found.get("users_file_problem"):
        parts.append(f"the users file is refused, an older one counts: {found['users_file_problem']}")
    return " · ".join(parts)


def _forecast(figures: Mapping[str, Any]) -> str:
    return (
        f"half of {figures['runs']} runs lasted within {figures['median_factor']:g} times what was predicted; "
        f"{figures['before_p50']:.0%} ended before p50, {figures['before_p90']:.0%} before p90"
    )


def containment_text(cage: Mapping[str, Any]) -> str:
    """Say how processes are held together, and whether limits are enforced."""
    if not cage.get("kind"):
        return "not known yet"
    limits = "memory and CPU limits are enforced" if cage.get("limits") else "no memory or CPU limits"
    return " · ".join(part for part in (str(cage["kind"]), limits, str(cage.get("reason") or "")) if part)


def _named(values: dict[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (values or {}).items())
