"""``airyard schema``: the JSON Schema of the workload file, for editors."""

from __future__ import annotations

import json

from airyard.cli.app import App, verb


@verb("schema")
def command(app: App) -> None:
    """Print the JSON Schema of the workload file.

    \b
    airyard schema > .airyard.schema.json, and as the first line of workload.yaml:
    # yaml-language-server: $schema=.airyard.schema.json
    """
    from airyard.spec.schema import workload_schema

    schema = workload_schema()
    if app.as_json:
        app.console.data(schema)
    else:
        app.console.text(json.dumps(schema, indent=2, ensure_ascii=False))
