"""
Figures of a checkpoint that follow from its metadata: steps, loops and states.

``_metadata`` contains no figures of its own. It holds what a restore needs, and most figures follow from that; the time
to write ``_metadata`` is known only after it was written. The rows of a recovered job get these figures.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_provider_statecheck.checkpoint.snapshot_summary import (
    LoopSummary,
    SnapshotSummary,
    StateSummary,
    StepOutcome,
    StepSummary,
)
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, OperatorState
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.state.progress import Iterations, LoopProgress, PartedStep, PartProgress, describe
from airflow_provider_statecheck.state.schemas import OperatorSchemas, StateSchema, decode_schemas
from airflow_provider_statecheck.state.serializers.serializer import describe as describe_type
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    InlineStateHandle,
    NamedSnapshot,
    named_snapshots,
)

log = logging.getLogger(__name__)


def summary_of(document: CheckpointDocument) -> SnapshotSummary | None:
    """Return the figures of a checkpoint, from its metadata alone; ``None`` if they cannot be read."""
    try:
        values = document.state.value if isinstance(document.state, InlineStateHandle) else {}
        parts = PartProgress(values.get("parts", ()))
        return SnapshotSummary(
            steps=tuple(
                step_summary(each, StepOutcome.HELD, parts.find((each.scope, each.name)))
                for each in named_snapshots(document.snapshots)
            ),
            loops=tuple(
                loop_summaries(LoopProgress(values.get("loops", ())), Iterations(values.get("iterations", ())))
            ),
            states=tuple(_states_of(document)),
        )
    except (StateCheckError, ValueError, TypeError, LookupError, AttributeError) as error:
        log.warning("The figures of checkpoint %s cannot be read: %r", document.checkpoint_id, error)
        return None


def step_summary(snapshot: NamedSnapshot, outcome: StepOutcome, progress: PartedStep | None = None) -> StepSummary:
    """
    Return the figures of a step with a snapshot.

    :param progress: Progress of a step that is computed in parts; ``None`` if it is unknown.
    """
    return StepSummary(
        name=describe((snapshot.scope, snapshot.name)),
        outcome=outcome.value,
        seconds=snapshot.seconds,
        size_bytes=snapshot.size_bytes,
        rows=snapshot.rows,
        parts=snapshot.parts,
        share=1.0 if snapshot.is_complete else None if progress is None else progress.share,
        bad_parts=0 if progress is None else len(progress.bad),
    )


def loop_summaries(progress: LoopProgress, iterations: Iterations) -> Iterator[LoopSummary]:
    """Return the figures of all loops, the outermost first."""
    for loop, (finished, total) in progress.counts.items():
        yield LoopSummary(name=describe(loop), finished=finished, total=total, seconds=progress.seconds(loop))
    for loop, (reached, total) in iterations.counts.items():
        yield LoopSummary(name=describe(loop), finished=reached, total=total, is_iteration=True)


def state_summaries(
    uid: str, schemas: OperatorSchemas, sizes: Mapping[str, tuple[int | None, int | None]]
) -> Iterator[StateSummary]:
    """
    Return the figures of the states of a function.

    :param uid: Uid of the function within its stage.
    :param sizes: Number of keys and size in bytes of each state, as far as they are known.
    """
    for schema in (*schemas.keyed, *schemas.operator):
        keys, size_bytes = sizes.get(schema.name, (None, None))
        yield StateSummary(
            uid=uid,
            name=schema.name,
            kind=schema.kind.value,
            type=type_text(schema),
            keys=keys,
            size_bytes=size_bytes,
        )


def size_of_only_state(schemas: OperatorSchemas, operators: Iterable[OperatorState]) -> dict[str, int]:
    """Return the size of the state of a function by name; empty for several states, which share files."""
    names = [schema.name for schema in (*schemas.keyed, *schemas.operator)]
    subtasks = [subtask for operator in operators for subtask in operator.subtask_states.values()]
    return {names[0]: sum(subtask.state_size for subtask in subtasks)} if len(names) == 1 else {}


def type_text(schema: StateSchema) -> str:
    """Return the type of the values of a state, for a map after that of its keys."""
    map_key = "" if schema.key is None else f"{describe_type(schema.key)} to "
    return f"{map_key}{describe_type(schema.value)}"


def _states_of(document: CheckpointDocument) -> Iterator[StateSummary]:
    prefix = f"{document.uid}/"
    for operator in document.operator_states:
        schemas = _schemas_of(operator)
        if schemas is not None:
            known = {name: (None, size) for name, size in size_of_only_state(schemas, [operator]).items()}
            yield from state_summaries(operator.uid.removeprefix(prefix), schemas, known)


def _schemas_of(operator: OperatorState) -> OperatorSchemas | None:
    # Schemas in a file are not read: these figures must cost no access to the storage.
    if not isinstance(operator.coordinator_state, ByteStreamStateHandle):
        return None
    value: Any = json.loads(operator.coordinator_state.data)
    # The coordinators of sources and sinks store other values.
    is_of_function = isinstance(value, dict) and {"version", "keyed", "operator"} <= value.keys()
    return decode_schemas(value) if is_of_function else None
