"""Tokens and the audit from the command line: what is printed where, and that a restart forgets nothing."""

from __future__ import annotations

import json
import re

from acceptance_yard import Yard


def test_tokens_from_the_command_line(own_yard: Yard) -> None:
    yard = own_yard
    made = yard.run(
        "token", "create", "--name", "night", "--kind", "agent", "--expires", "12h", "--gpu-hours-limit", "8"
    )
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert re.fullmatch(r"ayu_[0-9a-f]{12}_[\w-]{43}", secret)
    assert "agent, write" in made.stderr
    assert secret not in made.stderr
    url = json.loads(yard.run("-o", "json", "status").stdout)["data"]["url"]
    yard.extra = {"AIRYARD_HOST": url, "AIRYARD_TOKEN": secret}
    assert "of scope write" in yard.run("status").stdout
    refused = yard.run("token", "create", "--name", "more")
    assert (refused.returncode, "an agent may not create a token" in refused.stderr) == (4, True)
    name = yard.write("small", "true", accelerator="CPU")
    assert yard.run("run", name, "--watch").returncode == 0
    assert yard.run("secrets", "put", "a/b", stdin="a long value").returncode == 4

    yard.extra = {}
    assert yard.run("down", timeout=60).returncode == 0
    listed = yard.run("token", "list").stdout
    row = next(line for line in listed.splitlines() if "night" in line)
    assert secret.split("_")[1] in row
    assert "agent, write" in row
    assert "0.0 of 8" in row
    assert "never" not in row, "when it was used is kept over a restart"
    url = json.loads(yard.run("-o", "json", "status").stdout)["data"]["url"]
    yard.extra = {"AIRYARD_HOST": url, "AIRYARD_TOKEN": secret}
    assert yard.run("list").returncode == 0
    yard.extra = {}
    assert yard.run("token", "revoke", secret.split("_")[1]).stdout == f"revoked {secret.split('_')[1]}\n"
    yard.extra = {"AIRYARD_HOST": url, "AIRYARD_TOKEN": secret}
    gone = yard.run("list")
    assert (gone.returncode, "was revoked" in gone.stderr) == (4, True)
    yard.extra = {}
    assert yard.run("token", "revoke", "ffffffffffff").returncode == 3

    told = yard.run("admin", "audit", "--since", "1h").stdout
    assert re.search(r"done +\S+: create token", told)
    assert re.search(r"refused +\S+ \(token [0-9a-f]{12}\): create secret a/b", told)
    entries = [json.loads(line) for line in yard.run("-o", "json", "admin", "audit").stdout.splitlines()]
    assert {"create", "delete"} <= {entry["verb"] for entry in entries if entry["object"] == "token"}
    assert yard.run("admin", "audit", "--since", "yesterday").returncode == 2


def test_a_broken_users_file_is_no_start_and_says_where(own_yard: Yard) -> None:
    yard = own_yard
    config = yard.home / "config.toml"
    config.write_text(config.read_text() + '[people]\nfile = "users.yaml"\n')
    (yard.home / "users.yaml").write_text("users:\n  ada:\n    rol: admin\n")
    refused = yard.run("up")
    assert refused.returncode == 2
    assert "users.yaml:3:5  users.ada.rol  unknown field" in refused.stderr
    (yard.home / "users.yaml").write_text("users:\n  ada:\n    role: admin\n")
    assert yard.run("up").returncode == 0
    unknown = yard.run("token", "create", "--for", "eve", "--name", "x")
    assert (unknown.returncode, "there is no user 'eve'" in unknown.stderr) == (2, True)
