"""
Offline rescaling of a checkpoint to another maximum parallelism.

The key group of every key is recomputed. The result is a canonical savepoint, which does not reference files of its source.
"""

from __future__ import annotations

import contextlib

from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import require_parallelism
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.state.writing.canonical import CanonicalCopies
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument
from airflow_provider_statecheck.storage.pointers import WrittenSavepoint, write_copies


def rescale_max_parallelism(
    storage: CheckpointStorage, source: CheckpointDocument, *, directory: str, max_parallelism: int
) -> WrittenSavepoint:
    """
    Write a checkpoint as a savepoint with another maximum parallelism. The source is not changed.

    The metadata is written last, and a failed savepoint is deleted.

    :param storage: Storage of the checkpoint and the savepoint.
    :param source: Checkpoint or savepoint to rescale.
    :param directory: Directory of the new savepoint, without other writers.
    :param max_parallelism: New number of key groups.
    :raises InvalidConfigurationError: if the maximum parallelism is above the limit or below the parallelism of an
        operator, or for a savepoint of the whole job.
    :raises UnsupportedStateError: if only the code of the stage can interpret keys or types of the state.
    :raises CorruptStateError: if the state does not match its checksum.
    :raises CheckpointNotFoundError: if a file of the source is missing.
    :raises IncompatibleCheckpointError: if a newer version wrote the state, or the subtasks have different key types.
    :raises StorageError: if the storage fails.
    """
    _require_one_stage(source)
    for state in source.operator_states:
        require_parallelism(state.parallelism, max_parallelism)
    copies = CanonicalCopies(storage, directory, source, max_parallelism=max_parallelism)
    try:
        return write_copies(
            copies,
            source,
            checkpoint_id=source.checkpoint_id,
            properties=CheckpointProperties.for_savepoint(),
            request_key=source.request_key,
        )
    except BaseException:
        # Without metadata the directory is not a savepoint, so files that cannot be deleted are orphans.
        with contextlib.suppress(StorageError):
            storage.delete_directory(directory)
        raise


def _require_one_stage(source: CheckpointDocument) -> None:
    if source.is_of_several:
        uids = ", ".join(repr(state.uid) for state in source.operator_states)
        raise InvalidConfigurationError(
            f"Expected a checkpoint of one stage to rescale, found checkpoint {source.checkpoint_id} of job "
            f"{source.job_name!r}, which covers the stages {uids}; take a savepoint of the stage and rescale that."
        )
