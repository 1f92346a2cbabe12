"""The state of a stage's functions, dealt out to the subtasks of a try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_statecheck.checkpoint.ids import OperatorId, operator_id_of
from airflow_provider_statecheck.checkpoint.states.assignment import assign_states
from airflow_provider_statecheck.checkpoint.states.key_groups import default_max_parallelism
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState, OperatorSubtaskState
from airflow_provider_statecheck.checkpoint.states.restore_target import RestoreTarget
from airflow_provider_statecheck.spark.stages.planned import PlannedOperator
from airflow_provider_statecheck.spark.stages.restored_parts import RestoredParts
from airflow_provider_statecheck.state.schemas import OperatorSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How many subtasks and key groups a stage is to have."""

    subtasks: int
    max_parallelism: int | None
    """``None`` where nobody chose it: then it is that of the restored state, or follows from the subtasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredFunctions:
    """What the subtasks of a try begin with."""

    states: Mapping[tuple[OperatorId, int], OperatorSubtaskState] = field(default_factory=dict)
    schemas: Mapping[str, OperatorSchemas] = field(default_factory=dict)
    """By the uid of the operator; of what is restored."""
    restored: Mapping[str, OperatorState] = field(default_factory=dict)
    """By the uid of the operator; as it is in the checkpoint."""
    max_parallelism: int


def restore_functions(
    restored: RestoredParts,
    operators: Sequence[PlannedOperator],
    parallelism: Parallelism,
    *,
    stage_uid: str,
    renamed_uids: Mapping[str, str],
    allow_non_restored_state: bool,
) -> RestoredFunctions:
    """
    Deal the state of a checkpoint out to the subtasks of the functions.

    :param stage_uid: Of the stage within its job.
    :param renamed_uids: New uids of functions by old ones, within the stage.
    :param allow_non_restored_state: Whether state of functions that are gone is dropped.
    :raises IncompatibleCheckpointError: if the state does not fit.
    """
    max_parallelism = parallelism.max_parallelism or default_max_parallelism(parallelism.subtasks)
    targets = [_target(operator, parallelism, max_parallelism) for operator in operators]
    assigned = assign_states(
        targets,
        restored.functions,
        renamed_uids=_renamed(restored, operators, stage_uid, renamed_uids),
        allow_non_restored_state=allow_non_restored_state,
    )
    return RestoredFunctions(
        states=assigned.subtask_states,
        schemas={target.uid: restored.schemas_of(state) for target, state in assigned.matched.pairs},
        restored={target.uid: state for target, state in assigned.matched.pairs},
        max_parallelism=max(assigned.max_parallelisms.values(), default=max_parallelism),
    )


def _target(operator: PlannedOperator, parallelism: Parallelism, max_parallelism: int) -> RestoreTarget:
    return RestoreTarget(
        operator_id=operator_id_of(operator.uid),
        uid=operator.uid,
        parallelism=parallelism.subtasks,
        max_parallelism=max_parallelism,
        is_max_parallelism_configured=parallelism.max_parallelism is not None,
    )


def _renamed(
    restored: RestoredParts, operators: Sequence[PlannedOperator], stage_uid: str, renamed_uids: Mapping[str, str]
) -> dict[str, str]:
    same = {uid: uid for uid in (operator.node.uid for operator in operators)} | dict(renamed_uids)
    return {restored.uid_of(old): f"{stage_uid}/{new}" for old, new in same.items()}
