"""A run tells of its end: exactly one message, verified; and what was not delivered is shown."""

from __future__ import annotations

import json
from typing import Any

from acceptance_yard import Yard
from webhook_receiver import Receiver


def test_a_run_with_notify_tells_of_its_end_exactly_once(own_yard: Yard) -> None:
    with Receiver() as well, Receiver([410]) as refuses:
        with (own_yard.home / "config.toml").open("a") as config:
            config.write('[notify]\nallow_hosts = ["127.0.0.1"]\n')
        started = own_yard.run("up")
        assert started.returncode == 0, started.stderr
        stored = own_yard.run("secrets", "put", "ops/key", stdin="whsec_YWJjZGVm\n")
        assert stored.returncode == 0, stored.stderr
        rules = (
            f"notify:\n- on: [failed, preempted, stalled, done]\n  to: {well.url}\n  secret: ops/key\n"
            f"- {{on: [done], to: {refuses.url}}}\n"
        )
        run = own_yard.run("run", "-f", own_yard.write("told", "true", more=rules), "--watch")
        assert run.returncode == 0, run.stderr
        refuses.until(1)
        (message,) = well.until(1)
        assert message.genuine(b"abcdef")
        assert message.document["kind"] == "done"
        assert message.document["run"]["outcome"] == "SUCCEEDED"
        run_id = message.document["run"]["run_id"]
        data = settled(own_yard)
        assert data["counts"] == {"WAITING": 0, "DELIVERED": 1, "GIVEN_UP": 1}
        listed = own_yard.run("health", "notifications", "--state", "given_up").stdout
        assert "answered 410" in listed
        assert len(listed.splitlines()) == 2
        explained = own_yard.run("explain", str(run_id)).stdout
        assert (
            f"done to {refuses.url.removesuffix('/hooks/airyard')} (given up, tries: 1): answered 410"
            in explained
        )
        again = own_yard.run("rerun", str(run_id), "--watch")
        assert again.returncode == 0, again.stderr
        second = well.until(2)[1]
        assert second.document["run"]["run_id"] != run_id
        assert len(well.received) == 2


def settled(yard: Yard) -> dict[str, Any]:
    """Return the list once nothing waits: an answer is there before it is noted."""
    for _ in range(50):
        data: dict[str, Any] = json.loads(yard.run("-o", "json", "health", "notifications").stdout)["data"]
        if data["counts"]["WAITING"] == 0 and data["notifications"]:
            break
    return data


def test_a_start_that_is_refused_for_the_configuration_is_no_takeover(own_yard: Yard) -> None:
    secret = own_yard.work / "secret"
    secret.write_text("whsec_YWJjZGVm\n")
    secret.chmod(0o644)
    with Receiver() as receiver:
        with (own_yard.home / "config.toml").open("a") as config:
            config.write(f'[[notify.fleet]]\non = ["server_takeover"]\nto = "{receiver.url}"\n')
            config.write(f'secret_file = "{secret}"\n')
        refused = own_yard.run("up", "-o", "json")
        assert refused.returncode == 2, refused.stdout
        assert json.loads(refused.stdout)["error"]["code"] == "BAD_CONFIG"
        secret.chmod(0o600)
        assert own_yard.run("up").returncode == 0
        (message,) = receiver.until(1)
        assert message.document["kind"] == "server_takeover"
        assert settled(own_yard)["counts"] == {"WAITING": 0, "DELIVERED": 1, "GIVEN_UP": 0}
        assert len(receiver.received) == 1
