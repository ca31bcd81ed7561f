"""Decides what operators declare: pools, projects, users.

Owns: the acceptance of a policy as a whole, and what counts as a change. Must not know: YAML, the wire; the rules
themselves are ``policy_rules.py`` and ``policy_fit.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airyard.core.commands import DeclarePolicy
from airyard.core.decide.decision import Decision, Declared
from airyard.core.errors import UserError
from airyard.core.events import PolicyDeclared
from airyard.core.policy_diff import changes, normal
from airyard.core.policy_fit import LiveRun, problems
from airyard.core.policy_rules import Problem
from airyard.core.run import RunState
from airyard.core.state import ClusterState


def declare(state: ClusterState, command: DeclarePolicy, now_ms: int) -> Decision:
    """Replace what is declared, or with ``dry_run`` only say what that would change.

    A policy equal to the present one is no news. A configured file is declared again only once it was edited: a
    restart leaves alone what was declared since. Raises: UserError (``POLICY_INVALID``) with every problem.
    """
    configured = command.source == "config"
    if configured and command.digest == state.policy_digest:
        return Decision(reply=Declared())
    policy = normal(command.policy)
    found = problems(policy, before=state.policy, nodes=state.nodes.values(), runs=tuple(live_runs(state)))
    wrong = [problem for problem in found if not problem.warning]
    if wrong:
        raise invalid(wrong)
    reply = Declared(changes=changes(state.policy, policy), warnings=found)
    # Of a file that says the same in other words the new digest is noted.
    if command.dry_run or (policy == state.policy and not configured):
        return Decision(reply=reply)
    declared = PolicyDeclared(policy=policy, by=command.by, source=command.source, digest=command.digest)
    return Decision(events=(declared,), reply=reply)


def live_runs(state: ClusterState) -> Iterator[LiveRun]:
    """Yield the queued and active runs with where they stand, or ask to stand."""
    for run in state.runs.values():
        compute, attempt = run.workload.compute, run.attempt
        if run.state is RunState.ENDED:
            continue
        if run.state is RunState.QUEUED or attempt is None:
            yield LiveRun(run_id=run.run_id, project=run.project, pool=compute.pool)
        else:
            yield LiveRun(
                run_id=run.run_id,
                project=run.project,
                pool=attempt.pool or compute.accelerator,
                nodes=tuple(member.node for member in attempt.members),
            )


def invalid(wrong: Sequence[Problem]) -> UserError:
    """Return the refusal of a policy: every problem with its place and its next step."""
    lines = [f"{'.'.join(each.path)}: {each.message}" for each in wrong]
    if len(wrong) > 1:  # of a single one the next step stands below
        lines = [f"{line}\n  next: {each.fix}" for line, each in zip(lines, wrong, strict=True)]
    return UserError(
        f"the policy has {len(wrong)} problem{'s' if len(wrong) != 1 else ''}; nothing was changed:\n"
        + "\n".join(lines),
        code="POLICY_INVALID",
        details={"problems": [problem.to_json() for problem in wrong]},
        fix=wrong[0].fix if len(wrong) == 1 else "mend them all; a dry run checks again and changes nothing",
    )
