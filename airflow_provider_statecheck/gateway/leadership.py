"""Leadership of the aligned checkpoints of a job, taken for the time of a block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.rows import TakeLeadership
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.checkpoint.registration import unknown_checkpoint
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.orphans import newest_checkpoint_id

log = logging.getLogger(__name__)


@contextmanager
def leading(
    rows: AlignedCheckpoints, storage: CheckpointStorage, *, job_name: str, owner: AttemptOwner
) -> Iterator[AttemptRef]:
    """
    Lead the aligned checkpoints of a job in a block, after which no leader is registered.

    :param owner: The owner of the leadership.
    """
    leader = _take_leadership(rows, storage, job_name, owner)
    with ending(lambda: rows.resign(leader)):
        yield leader


def _take_leadership(
    rows: AlignedCheckpoints, storage: CheckpointStorage, job_name: str, owner: AttemptOwner
) -> AttemptRef:
    newest = newest_checkpoint_id(storage, job_id_of(job_name))
    leader = rows.lead(
        TakeLeadership(
            job_name=job_name,
            attempt_key=new_key(),
            owner=owner,
            storage_base=storage.base_uri,
            newest_on_storage=newest,
        )
    )
    # Costs a read of all rows only if the newest directory is the last one that has been given an id.
    if newest and rows.count_ids(leader) == newest + 1 and rows.describe(leader.job_id).checkpoint(newest) is None:
        log.warning("%s", unknown_checkpoint(job_name, newest))
    return leader


@contextmanager
def ending(end: Callable[[], None]) -> Iterator[None]:
    """Call a function at the end of a block, and raise the block's own error rather than one of the call."""
    try:
        yield
    except BaseException:
        # The leader may have been replaced, or the server may be out of reach, for the same reason.
        with suppress(StateCheckError):
            end()
        raise
    end()
