"""What holds for the commits of sinks, as a part of the contract of every coordinator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    FinishAttempt,
    OpenEffects,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.exceptions import OpenCommitError, StaleAttemptError
from airflow_provider_statecheck.gateway.verbs import StageGateway as Gateway
from tests.messages import complete_checkpoint, make_acknowledgement, make_owner, make_registration

JOB = job_id_of("sales")


class CommitContract:
    """A checkpoint with something to commit stays as it is until a sink has committed it."""

    gateway: Gateway

    def prepare_commit(self, attempt: AttemptRef) -> OpenEffects:
        """Complete a checkpoint that a sink has to commit."""
        return complete_checkpoint(self.gateway, attempt, has_commit=True).effects

    def confirm_commit(self, attempt: AttemptRef, *checkpoint_ids: int) -> OpenEffects:
        """Say that a sink has committed."""
        return self.gateway.confirm_commits(attempt, checkpoint_ids)

    def retained_ids(self) -> list[int]:
        """Return the checkpoints that are retained."""
        rows = self.gateway.describe(JOB).checkpoints
        return [c.checkpoint_id for c in rows if c.status is CheckpointStatus.COMPLETED]

    def finish_attempt(self, attempt: AttemptRef, status: AttemptStatus = AttemptStatus.FINISHED) -> OpenEffects:
        return self.gateway.finish(FinishAttempt(attempt=attempt, status=status))

    def test_a_completed_checkpoint_of_a_sink_is_an_open_commit_until_it_is_confirmed(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        assert complete_checkpoint(self.gateway, attempt).effects.commits == ()
        assert self.prepare_commit(attempt).commits == (2,)
        assert self.confirm_commit(attempt, 2).commits == ()
        assert [c.has_open_commit for c in self.gateway.describe(JOB).checkpoints] == [False, False]

    def test_a_pending_or_aborted_checkpoint_is_nothing_to_commit(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        assert self.confirm_commit(attempt, pending.checkpoint_id).commits == ()
        effects = self.finish_attempt(attempt, AttemptStatus.FAILED)
        assert (effects.commits, [c.checkpoint_id for c in effects.discards]) == ((), [1])

    def test_a_repeated_acknowledgement_carries_the_open_commits_and_opens_none_again(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        message = make_acknowledgement(attempt, pending.checkpoint_id, has_commit=True)
        assert [self.gateway.acknowledge(message).effects.commits for _ in range(2)] == [(1,), (1,)]
        self.confirm_commit(attempt, 1)
        assert self.gateway.acknowledge(message).effects.commits == ()

    def test_no_checkpoint_with_an_open_commit_is_subsumed_or_discarded(self) -> None:
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        for _ in range(2):
            self.prepare_commit(attempt)
        effects = self.prepare_commit(attempt)
        assert effects.commits == (1, 2, 3)
        assert effects.discards == ()
        assert [c.checkpoint_id for c in effects.retained] == [1, 2, 3]

    def test_what_only_waited_for_its_commit_falls_out_of_retention_when_it_is_confirmed(self) -> None:
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        for _ in range(3):
            self.prepare_commit(attempt)
        effects = self.confirm_commit(attempt, 2)
        assert (effects.commits, [c.checkpoint_id for c in effects.discards]) == ((3,), [1, 2])
        assert self.retained_ids() == [3]

    def test_confirming_a_checkpoint_confirms_the_older_ones(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        for _ in range(3):
            self.prepare_commit(attempt)
        assert self.confirm_commit(attempt, 2).commits == (3,)

    def test_confirming_twice_is_confirming_once(self) -> None:
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        for _ in range(2):
            self.prepare_commit(attempt)
        first = self.confirm_commit(attempt, 2)
        assert self.confirm_commit(attempt, 2) == first
        assert self.confirm_commit(attempt, 1, 2) == first

    def test_what_is_no_completed_checkpoint_of_the_operator_confirms_nothing(self) -> None:
        mine = self.gateway.register(make_registration()).attempt
        self.prepare_commit(mine)
        other = self.gateway.register(make_registration(uid="other")).attempt
        self.prepare_commit(other)
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=mine, request_key=new_key()))
        assert self.confirm_commit(mine, 2, pending.checkpoint_id, 99).commits == (1,)
        assert self.confirm_commit(mine).commits == (1,)
        assert self.confirm_commit(other, 1).commits == (2,)

    def test_the_next_attempt_hears_of_open_commits_with_every_reply(self) -> None:
        first = self.gateway.register(make_registration())
        for _ in range(2):
            self.prepare_commit(first.attempt)
        request = make_registration()
        assert [self.gateway.register(request).effects.commits for _ in range(2)] == [(1, 2), (1, 2)]
        retry = self.gateway.register(request).attempt
        assert complete_checkpoint(self.gateway, retry).effects.commits == (1, 2)
        assert self.confirm_commit(retry, 3).commits == ()

    def test_an_attempt_cannot_finish_with_an_open_commit(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        self.prepare_commit(attempt)
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        with pytest.raises(OpenCommitError, match="open commits of checkpoints 1;"):
            self.finish_attempt(attempt)
        view = self.gateway.describe(JOB)
        assert view.attempts[0].status is AttemptStatus.RUNNING
        assert view.checkpoints[-1].checkpoint_id == pending.checkpoint_id
        assert view.checkpoints[-1].status is CheckpointStatus.PENDING
        self.confirm_commit(attempt, 1)
        self.finish_attempt(attempt)
        assert self.gateway.describe(JOB).attempts[0].status is AttemptStatus.FINISHED

    def test_the_open_commit_of_another_operator_keeps_nobody_from_finishing(self) -> None:
        self.prepare_commit(self.gateway.register(make_registration(uid="other")).attempt)
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt)
        assert self.finish_attempt(attempt).commits == ()

    def test_an_attempt_that_failed_leaves_its_open_commits_to_the_next(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        self.prepare_commit(attempt)
        assert self.finish_attempt(attempt, AttemptStatus.FAILED).commits == (1,)
        assert self.gateway.register(make_registration()).effects.commits == (1,)

    def test_an_attempt_that_failed_and_was_not_replaced_may_still_confirm(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        self.prepare_commit(attempt)
        self.finish_attempt(attempt, AttemptStatus.FAILED)
        assert self.confirm_commit(attempt, 1).commits == ()

    def test_a_fenced_attempt_confirms_nothing(self) -> None:
        zombie = self.gateway.register(make_registration()).attempt
        self.prepare_commit(zombie)
        self.gateway.register(make_registration())
        before = self.gateway.describe(JOB).checkpoints
        with pytest.raises(StaleAttemptError, match="replaced by attempt 2"):
            self.confirm_commit(zombie, 1)
        assert self.gateway.describe(JOB).checkpoints == before

    def test_a_fresh_start_ends_the_open_commits_of_earlier_generations(self) -> None:
        first = self.gateway.register(make_registration()).attempt
        self.prepare_commit(first)
        fresh = self.gateway.register(make_registration(owner=make_owner(run_id="manual__2")))
        assert (fresh.generation, fresh.effects.commits) == (2, ())
        effects = self.prepare_commit(fresh.attempt)
        assert (effects.commits, [c.checkpoint_id for c in effects.discards]) == ((2,), [1])

    def test_a_checkpoint_that_could_not_be_restored_is_not_committed(self) -> None:
        retry = self.fall_back_to_older()
        assert complete_checkpoint(self.gateway, retry).effects.commits == ()
        self.finish_attempt(retry)

    def test_a_checkpoint_that_can_be_restored_after_all_is_committed(self) -> None:
        retry = self.fall_back_to_older()
        self.confirm_commit(retry, 2)
        again = self.gateway.register(make_registration()).attempt
        self.gateway.confirm_restore(ConfirmRestore(attempt=again, checkpoint_id=2))
        assert complete_checkpoint(self.gateway, again).effects.commits == (2,)

    def fall_back_to_older(self) -> AttemptRef:
        """Let an attempt restore a confirmed checkpoint, because the newer one with an open commit is damaged."""
        first = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, first)
        self.prepare_commit(first)
        retry = self.gateway.register(make_registration()).attempt
        skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum differs"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=retry, checkpoint_id=1, skipped=skipped))
        return retry

    def test_retention_with_open_commits_costs_no_usable_checkpoint_its_place(self) -> None:
        attempt = self.gateway.register(make_registration(num_retained=2)).attempt
        take: list[Callable[[], object]] = [
            lambda: self.prepare_commit(attempt),
            lambda: self.confirm_commit(attempt, 1),
            lambda: complete_checkpoint(self.gateway, attempt),
            lambda: self.prepare_commit(attempt),
        ]
        for step in take:
            step()
        assert self.retained_ids() == [2, 3]
