"""
Checkpoint ids that the storage of a job knows and its database, after a loss, does not.

A stage and a coordinator of several operators list the storage before they register, and the registration moves the
next id of the job past all ids found: a directory is never written by two checkpoints.
"""

from __future__ import annotations

import logging

from airflow_provider_statecheck.checkpoint.store import JobTransaction

log = logging.getLogger(__name__)


def skip_ids_on_storage(tx: JobTransaction, newest: int) -> bool:
    """
    Move the next checkpoint id of a job past the newest one on its storage.

    :param newest: Highest id of a checkpoint directory; 0 without any.
    :return: Whether the database does not know this checkpoint.
    """
    following = tx.job.next_checkpoint_id
    # A repeated message finds that the first one has already advanced the id.
    if newest == 0 or newest + 1 < following or tx.checkpoint(newest) is not None:
        return False
    if newest >= following:
        tx.set_next_checkpoint_id(newest + 1)
        log.warning("Job %s: checkpoint %s on storage, next id in the database was %s", tx.job.name, newest, following)
    return True


def unknown_checkpoint(job_name: str, newest: int) -> str:
    """Return the warning for a checkpoint on storage that the database does not know."""
    return (
        f"The storage of job {job_name!r} contains checkpoint {newest}, which is not in the database, for example "
        f"because a backup of the database was restored. New checkpoints start at id {newest + 1}, and checkpoints "
        "that the database does not know are not deleted."
    )
