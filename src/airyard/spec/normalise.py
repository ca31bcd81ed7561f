"""A valid workload file to the one normal form that everything else reads.

Owns: which spellings mean the same, defaults, units.
Must not know: positions, files, whether the file was valid (it was).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airyard.core.notify import NotifyRule
from airyard.core.workload import (
    DEFAULT_ENVIRONMENT_VERSION,
    DEFAULT_MAX_RETRIES,
    Compute,
    Environment,
    HangAction,
    HangRules,
    Permission,
    PreemptionRules,
    Priority,
    Role,
    Timeouts,
    Tracking,
    Workload,
    freeze_parameters,
    pairs,
)
from airyard.spec.inputs import Requirements
from airyard.spec.models import ComputeBlock, ContainerBlock, EnvironmentBlock, WorkloadFile
from airyard.spec.rules import SECRET_TEXT


def normalise(file: WorkloadFile, requirements: Requirements) -> Workload:
    """Return the workload that a valid file describes; its code is packed later."""
    variables, secrets = _variables(
        [file.environment.env_variables if file.environment else None, file.env_variables],
        [file.environment.secrets if file.environment else None, file.secrets],
    )
    return Workload(
        experiment=file.experiment_name,
        name=file.name,
        project=file.project,
        tags=pairs(file.tags or {}),
        command=file.command or "",
        roles=tuple(_role(container) for container in file.containers or ()),
        compute=_compute(file.compute, file.priority if isinstance(file.priority, Priority) else None),
        environment=_environment(file.environment, requirements),
        env_variables=pairs(variables),
        secrets=pairs(secrets),
        parameters_json=freeze_parameters(file.parameters),
        max_retries=DEFAULT_MAX_RETRIES if file.max_retries is None else file.max_retries,
        attempt_timeout_s=file.timeout_minutes * 60 if file.timeout_minutes else None,
        timeouts=_timeouts(file),
        preemption=_preemption(file),
        hang=_hang(file),
        tracking=Tracking(
            enabled=file.tracking is not False,
            run_name=file.mlflow_run_name,
            experiment_directory=file.mlflow_experiment_directory,
            artifact_location=file.mlflow_artifact_location,
        ),
        notify=tuple(
            NotifyRule(on=tuple(dict.fromkeys(rule.on)), to=rule.to, secret=rule.secret)
            for rule in file.notify or ()
        ),
        permissions=tuple(
            Permission(
                level=grant.level,
                user_name=grant.user_name,
                group_name=grant.group_name,
                service_principal_name=grant.service_principal_name,
            )
            for grant in file.permissions or ()
        ),
        run_as=file.run_as,
        usage_policy_name=file.usage_policy_name,
        usage_policy_id=file.usage_policy_id,
    )


def _compute(block: ComputeBlock, legacy_priority: Priority | None) -> Compute:
    compute = Compute.of(block.accelerator_type)
    per_node = compute.local_world_size
    return replace(
        compute,
        nodes=(block.num_accelerators or per_node) // per_node,
        pool=block.pool_id or block.pool_name or block.provisioned_capacity_id or block.node_pool_id,
        priority=block.priority_class or legacy_priority or Priority.NORMAL,
        same_fabric=bool(block.same_fabric),
        cpus=block.cpus,
        memory_bytes=block.memory,
        shm_bytes=block.shm,
    )


def _environment(block: EnvironmentBlock | None, requirements: Requirements) -> Environment:
    asked = (block.version if block else None) or requirements.version or DEFAULT_ENVIRONMENT_VERSION
    return Environment(
        version=asked.removeprefix("databricks_ai_v"),
        ai=asked.startswith("databricks_ai_v"),
        dependencies=requirements.entries,
    )


def _role(block: ContainerBlock) -> Role:
    nested = block.environment_variables.variables if block.environment_variables else None
    variables, secrets = _variables([nested, block.env_variables], [block.secrets])
    return Role(
        name=block.name,
        command=block.command,
        ranks=tuple(sorted(block.ranks)),
        env_variables=pairs(variables),
        secrets=pairs(secrets),
    )


def _variables(
    texts: list[dict[str, str] | None], references: list[dict[str, str] | None]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Split plain variables from secrets, whichever way a secret was written."""
    variables: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for texts_of_place in texts:
        for name, text in (texts_of_place or {}).items():
            match = SECRET_TEXT.fullmatch(text)
            if match:
                secrets[name] = f"{match[1]}/{match[2]}"
            else:
                variables[name] = text
    for references_of_place in references:
        secrets.update(references_of_place or {})
    return variables, secrets


def _timeouts(file: WorkloadFile) -> Timeouts:
    block = file.timeouts
    if block is None:
        return Timeouts()
    return Timeouts(queue_s=block.queue, environment_s=block.environment, total_s=block.total)


def _hang(file: WorkloadFile) -> HangRules:
    block = file.hang
    if block is None:
        return HangRules()
    return HangRules(timeout_s=block.timeout_seconds, action=HangAction(block.action or "report"))


def _preemption(file: WorkloadFile) -> PreemptionRules:
    block = file.preemption
    if block is None:
        return PreemptionRules()
    return PreemptionRules(
        grace_s=block.grace_seconds, signal=block.signal or "SIGTERM", max_loss_s=block.max_loss
    )
