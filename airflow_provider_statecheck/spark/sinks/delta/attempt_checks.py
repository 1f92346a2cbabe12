"""Whether an attempt may do to a Delta table what it is about to do."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, StaleAttemptError
from airflow_provider_statecheck.spark.sinks.delta.committable import DeltaCommittable, DeltaFile
from airflow_provider_statecheck.spark.sinks.delta.files import DeltaFiles
from airflow_provider_statecheck.spark.sinks.delta.standing import Standing
from airflow_provider_statecheck.spark.sinks.ledger import Ledger, in_parallel
from airflow_provider_statecheck.spark.sinks.line import Start
from airflow_provider_statecheck.spark.sinks.record import CommitRecord
from airflow_provider_statecheck.spark.sinks.target_files import why_gone

log = logging.getLogger(__name__)


def require_owner(standing: Standing, epoch: int) -> None:
    """
    Refuse an attempt after a newer one took the table over.

    :raises StaleAttemptError: if one did.
    """
    if standing.head is None:
        # Also where somebody has made the table anew meanwhile.
        standing.ledger.require_newest(epoch)
    elif standing.head > epoch:
        raise StaleAttemptError(
            f"Attempt {epoch} no longer owns its output in {standing.shown}: attempt {standing.head} took it over; stop this "
            "one.",
            epoch=standing.head,
        )


def require_first_opening(standing: Standing, epoch: int, start: Start) -> None:
    """
    Refuse an attempt that goes back behind its own commits.

    :raises CoordinatorError: if it does.
    """
    ledger = standing.ledger
    if ledger.starts.get(epoch, start) != start and any(record.epoch == epoch for record in ledger.active):
        raise CoordinatorError(
            f"Expected attempt {epoch} to restore nothing after its own first commit to {standing.shown}, found checkpoint "
            f"{start.restored}; register a new attempt."
        )


def warn_if_unknown(standing: Standing, start: Start) -> None:
    """Tell that the table knows nothing of what an attempt goes on from."""
    if start.restored is not None and start.taken_by is not None and start.taken_by not in standing.ledger.starts:
        log.warning(
            "The Delta table %s does not know attempt %s, which took the restored checkpoint %s: the sink is new here, or the "
            "table was made anew and lacks all output until then",
            standing.shown,
            start.taken_by,
            start.restored,
        )


def require_output_of_restored(standing: Standing, start: Start) -> None:
    """
    Refuse to go on from a checkpoint whose output was replaced.

    :raises CorruptStateError: if it was.
    """
    newest, history = standing.newest, standing.ledger.history()
    taken_by = start.taken_by or history.taken.get(start.restored or 0)
    if start.restored is None or taken_by is None or newest is None:
        return
    line = history.line_to(taken_by, start.restored)
    own = [r for r in standing.ledger.active if r.files and line.holds(r.epoch, r.checkpoint_id)]
    gone = [record for record in own if newest.replaces(record)]
    if gone:
        raise CorruptStateError(
            f"Expected the output of checkpoint {gone[0].checkpoint_id} in {standing.shown}, found that checkpoint "
            f"{newest.checkpoint_id} of attempt {newest.epoch} replaced it; restore from the newest checkpoint or from one "
            "before that, or start over.",
            checkpoint_id=gone[0].checkpoint_id,
        )


def require_all_named(
    ledger: Ledger, record: CommitRecord, tasks: Sequence[DeltaCommittable], epoch: int, shown: str
) -> None:
    """
    Refuse another output for a checkpoint than the one that its record has, with what it carried along.

    :param epoch: The attempt, which goes on from what was carried.
    :raises CorruptStateError: if it is another one.
    """
    line = ledger.history().line_to(epoch, sys.maxsize)
    ours = [r for r in ledger.active if r.key == record.key or line.holds(r.epoch, r.checkpoint_id)]
    named = {name for known in ours for name in known.staged}
    unknown = sorted({file.name for task in tasks for file in task.files} - named)
    if unknown:
        raise CorruptStateError(
            f"Expected the same output with each commit of checkpoint {record.checkpoint_id} to {shown}, found {unknown[0]} "
            "beside what was committed; the checkpoint is not the one that was committed. Start over.",
            checkpoint_id=record.checkpoint_id,
        )


def require_dead(standing: Standing, record: CommitRecord, newest: CommitRecord, epoch: int) -> None:
    """
    Refuse an old checkpoint, unless the attempt goes on from what replaced it.

    :raises CoordinatorError: if it does not.
    """
    # Open commits of a branch that an attempt left are told to it again and again until they are confirmed.
    line = standing.ledger.history(record).line_to(epoch, sys.maxsize)
    if not line.holds(newest.epoch, newest.checkpoint_id):
        raise CoordinatorError(
            f"Expected to commit no output to {standing.shown} but that of checkpoints after {newest.checkpoint_id} of attempt "
            f"{newest.epoch}, found checkpoint {record.checkpoint_id} of attempt {record.epoch}; restore from checkpoint "
            f"{newest.checkpoint_id}, or start over.",
            checkpoint_id=record.checkpoint_id,
        )
    log.warning("The output of checkpoint %s is not committed: what was committed since replaces it", record.key)


def require_there(files: DeltaFiles, record: CommitRecord, wanted: Sequence[DeltaFile]) -> None:
    """
    Refuse to name files in the log that are not there as a whole.

    :raises CorruptStateError: if one is not.
    """
    sizes = in_parallel(lambda file: files.size(file.name), wanted, is_local=files.is_local)
    wrong = [(file, size) for file, size in zip(wanted, sizes, strict=True) if size != file.size_bytes]
    if wrong:
        file, size = wrong[0]
        found = f"{size}; the file was changed. Restore from an earlier checkpoint, or start over."
        if size is None:
            found = f"no file; {why_gone(files.is_local)} VACUUM deletes what has waited for its commit for too long."
        raise CorruptStateError(
            f"Expected {file.size_bytes} bytes of checkpoint {record.checkpoint_id} in {files.target}/{file.name}, found {found}",
            checkpoint_id=record.checkpoint_id,
        )
