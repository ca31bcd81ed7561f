"""What runs of a token have used is counted from journalled facts, and a spent token pays for nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.core import commands as c
from airyard.core.access.logins import Login
from airyard.core.access.roles import Kind, Role, Scope
from airyard.core.access.tokens import KEPT_MS, Token
from airyard.core.decide.tokening import MOST_TOKENS
from airyard.core.errors import Conflict, Denied, NotFound, Unavailable
from airyard.core.state import ClusterState
from core_yard import START_MS, Yard, node, workload

TOKEN = Token(
    token_id="k1", digest="d", user="ada", name="night", scope=Scope.WRITE, kind=Kind.AGENT, by="ada",
    created_ms=START_MS, gpu_hours=8.0,
)  # fmt: skip


def yard_with(token: Token = TOKEN) -> Yard:
    yard = Yard(node("n1"), node("c1", model=None))
    yard.do(c.CreateToken(token=token))
    return yard


def submit(yard: Yard, accelerator: str = "GPU_8xH100", **changes: Any) -> int:
    command = c.SubmitRun(
        owner="ada",
        workload=workload(accelerator),
        idempotency_key=f"k{yard.state.next_run_id}",
        token_id="k1",
    )
    reply = yard.do(replace(command, **changes)).reply
    return int(reply.run_id)  # type: ignore[union-attr]  # a submit is answered by Submitted


def used(yard: Yard) -> float:
    return yard.state.spent["k1"].hours(yard.now_ms)


def test_device_hours_count_from_placing_to_release() -> None:
    yard = yard_with()
    run_id = submit(yard)
    yard.later(500).place()
    assert used(yard.later(1800)) == 4
    yard.start(f"{run_id}.0.0")
    yard.exit(f"{run_id}.0.0")
    assert used(yard.later(7200)) == 4
    assert ClusterState.from_json(yard.state.to_json()).spent == yard.state.spent


def test_beyond_its_limit_a_token_pays_for_no_gpu_but_for_cpu_slots() -> None:
    yard = yard_with()
    submit(yard)
    yard.place()
    waiting = submit(yard)
    yard.later(3600)
    with pytest.raises(Denied) as caught:
        submit(yard)
    assert caught.value.code == "TOKEN_SPENT"
    assert caught.value.message == "token k1 (night) has used 8.00 of its 8 GPU-hours"
    assert caught.value.details == {"token_id": "k1", "used_gpu_hours": 8.0, "limit_gpu_hours": 8.0}
    submit(yard, "CPU")
    again = submit(yard, workload=yard.run(waiting).workload, idempotency_key=f"k{waiting}")
    assert again == waiting, "what a key made before is found, not refused"
    submit(yard, token_id="")


def test_cpu_slots_cost_nothing() -> None:
    yard = yard_with()
    submit(yard, "CPU")
    yard.place()
    assert yard.state.spent == {}


def test_a_resumed_run_is_charged_to_who_resumed_it() -> None:
    yard = yard_with()
    run_id = submit(yard, token_id="")
    yard.do(c.CancelRun(run_id=run_id, by="ada"))
    ended = yard.state.runs.get(run_id) or yard.state.departed[run_id]
    yard.do(c.ResumeRun(run=ended, by="ada", token_id="k1"))
    yard.place()
    assert used(yard.later(900)) == 2
    assert yard.run(run_id).token_id == "k1"


def test_a_token_that_counts_no_more_submits_nothing() -> None:
    yard = yard_with(replace(TOKEN, expires_ms=START_MS + 1000))
    submit(yard)
    yard.later(1)
    for refused in ("k1", "unknown"):
        with pytest.raises(Denied) as caught:
            submit(yard, token_id=refused)
        assert caught.value.code == "TOKEN_NOT_VALID"


def test_tokens_are_taken_back_once_and_forgotten_in_the_end() -> None:
    yard = yard_with()
    with pytest.raises(Conflict):
        yard.do(c.CreateToken(token=replace(TOKEN, token_id="k2")))
    with pytest.raises(NotFound):
        yard.do(c.RevokeToken(token_id="k9", by="ada"))
    assert len(yard.do(c.RevokeToken(token_id="k1", by="op")).events) == 1
    assert yard.do(c.RevokeToken(token_id="k1", by="op")).events == ()
    assert yard.state.tokens["k1"].revoked_by == "op"
    yard.do(c.CreateToken(token=replace(TOKEN, token_id="k2")))
    assert set(yard.state.tokens) == {"k1", "k2"}, "its name is free again"
    yard.later(KEPT_MS / 1000)
    yard.do(c.CreateToken(token=replace(TOKEN, token_id="k3", name="other")))
    assert set(yard.state.tokens) == {"k2", "k3"}
    assert ClusterState.from_json(yard.state.to_json()) == yard.state


def test_old_tokens_do_not_keep_new_ones_out() -> None:
    yard = Yard(node("n1"))
    over_ms = yard.now_ms - KEPT_MS - 1
    old = {
        f"o{number}": replace(TOKEN, token_id=f"o{number}", name=f"o{number}", expires_ms=over_ms)
        for number in range(MOST_TOKENS)
    }
    yard.state.tokens.update(old)
    yard.do(c.CreateToken(token=TOKEN))
    assert set(yard.state.tokens) == {"k1"}
    yard.state.tokens.update({name: replace(token, expires_ms=None) for name, token in old.items()})
    with pytest.raises(Unavailable, match="limit"):
        yard.do(c.CreateToken(token=replace(TOKEN, token_id="k2", name="k2")))


def test_a_jobs_token_is_forgotten_soon() -> None:
    job = replace(TOKEN, expires_ms=START_MS, login=Login(issuer="https://ci", subject="repo", role=None))
    person = replace(job, login=replace(job.login, role=Role.USER))  # type: ignore[type-var]  # it has one
    hours = [token.forgettable(START_MS + 2 * 3_600_000) for token in (job, person, TOKEN)]
    assert hours == [True, False, False]
