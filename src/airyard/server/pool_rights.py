"""Pools that only some may use: a run is kept to those that its caller may.

Owns: that check at submit, resume and a change of project. Must not know: the planner. Rights on pools are the users
file's, which the planner does not read: a run that names no pool is pinned to the one that it may use.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.app.control import Control
from airyard.core.access.people import RunAs
from airyard.core.access.principals import Principal
from airyard.core.access.roles import Thing, Verb
from airyard.core.access.table import Facts, allowed
from airyard.core.errors import Denied, UserError
from airyard.core.scheduling.snapshot import offers_of
from airyard.core.workload import Workload
from airyard.server.context import ServerContext
from airyard.server.identities import no_account


def check_pool(
    context: ServerContext, principal: Principal, workload: Workload, project: str, *, account: str
) -> Workload:
    """Return the workload, with its pool named where others of its kind are closed to the caller.

    A run without an ``account`` of its own does not stand in a pool that asks for one.
    Raises: Denied (``POOL_NOT_ALLOWED``); UserError (``NAME_A_POOL``) when several are open and some are not, and
    ``NO_UNIX_USER``.
    """
    people = context.access.people()
    if people.run_as is RunAs.USER and not account:
        raise no_account(workload.run_as or principal.name)
    if not people.pools:
        return workload
    compute = workload.compute
    pools = pools_of(context, workload)
    admitting = {pool for pool in pools if _admits(context, principal, pool, project)}
    open_ = sorted(pool for pool in admitting if account or not people.asks_for_account(pool))
    if len(open_) == len(pools):
        return workload
    if admitting and not open_:
        raise no_account(workload.run_as or principal.name, ", ".join(sorted(admitting)))
    if not open_:
        raise Denied(
            f"{principal.name} may not use pool {', '.join(sorted(pools))} for project {project}",
            code="POOL_NOT_ALLOWED",
            details={"pools": sorted(pools), "project": project},
            fix="an admin of this yard opens a pool with `pools` in the users file",
        )
    if len(open_) > 1:
        raise UserError(
            f"not every pool of {compute.accelerator} is open to {principal.name}; these are: {', '.join(open_)}",
            code="NAME_A_POOL",
            details={"pools": open_},
            fix="name one of them with compute.pool_id",
        )
    return replace(workload, compute=replace(compute, pool=open_[0]))


def pools_of(context: ServerContext, workload: Workload) -> set[str]:
    """Return the pools in which the run could stand: the one that it names, else all with such nodes."""
    compute = workload.compute
    if compute.pool is not None:
        return {compute.pool}

    def fitting(control: Control) -> set[str]:
        return {
            view.pool
            for view, _ in offers_of(control.state)
            if view.model == compute.model
            and (compute.model is not None or view.accelerator == compute.accelerator)
        }

    return context.loop.peek(fitting)


def _admits(context: ServerContext, principal: Principal, pool: str, project: str) -> bool:
    admitted = context.access.people().may_use(principal, pool, project)
    return allowed(principal, Verb.USE, Thing.POOL, Facts(project=project, admitted=admitted)).allowed
