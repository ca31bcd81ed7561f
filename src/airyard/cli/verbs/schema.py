"""``airyard schema``: the JSON Schema of the workload file, or of yard.yaml, for editors."""

from __future__ import annotations

import json

import click

from airyard.cli.app import App, verb


@verb("schema")
@click.option("--yard", is_flag=True, help="That of yard.yaml (`airyard apply`).")
def command(app: App, yard: bool) -> None:
    """Print the JSON Schema of the workload file.

    \b
    airyard schema > .airyard.schema.json, and as the first line of workload.yaml:
    # yaml-language-server: $schema=.airyard.schema.json
    """
    from airyard.spec.schema import workload_schema, yard_schema

    schema = yard_schema() if yard else workload_schema()
    if app.as_json:
        app.console.data(schema)
    else:
        app.console.text(json.dumps(schema, indent=2, ensure_ascii=False))
