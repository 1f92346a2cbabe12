"""What tasks of a maintenance Dag may do over HTTP, by the client that they use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from airflow_provider_statecheck.api.tokens import TASK_LIFETIME
from airflow_provider_statecheck.checkpoint.aligned.rows import AbortCheckpoints, AbortScope
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import JobAction
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.gateway.http import HttpCalls, HttpClient
from airflow_provider_statecheck.gateway.verbs import STAGE_CALLS, Verb
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.actions import ALIGNED, MAINTENANCE as MAINTENANCE_CALLS, RESTORES
from airflow_provider_statecheck.maintenance.job_maintenance import (
    RetireJob,
)
from airflow_provider_statecheck.maintenance.job_restore import JobSavepoint, RestoreJob, SavedMember
from airflow_provider_statecheck.metadata.tables import Caller
from tests.messages import make_leadership, make_owner, make_source
from tests.unit.api.server import (
    CALLER,
    JOB,
    MAINTENANCE,
    OTHER_DAG,
    OTHER_TASK,
    UID,
    ApiServer,
    accepted,
    owner_of,
)

DAY = 24 * 3600.0
JOB_ID = job_id_of(JOB)
OWN_NAME = job_id_of("sales")


class Credentials:
    """Gets a task's tokens and counts them."""

    def __init__(self, api: ApiServer, caller: Caller) -> None:
        self.count = 0
        self._api = api
        self._caller = caller

    def obtain(self) -> str:
        self.count += 1
        return self._api.task_token(self._caller)


@dataclass
class OneToken:
    """One token of a task for the calls of several services."""

    token: str

    def obtain(self) -> str:
        return self.token


def calls_of(
    verbs: Mapping[str, Verb],
    api: ApiServer,
    caller: Caller = MAINTENANCE,
    credentials: Credentials | OneToken | None = None,
) -> Any:
    """Return the calls of a service as a task makes them."""
    client: Any = api.client
    return HttpCalls(verbs, HttpClient("http://testserver", client), credentials or Credentials(api, caller))


maintenance, aligned, restores = (partial(calls_of, verbs) for verbs in (MAINTENANCE_CALLS, ALIGNED, RESTORES))


@pytest.fixture
def ended(api: ApiServer) -> ApiServer:
    """Two jobs whose only attempts ended: one named after its run, one with a name of its own."""
    for job in (JOB, "sales"):
        attempt = api.attempt(job)
        for _ in range(3):
            api.complete(attempt)
        accepted(api.finish(attempt))
    return api


def test_a_job_whose_run_is_over_goes_step_by_step(ended: ApiServer) -> None:
    remote, request = maintenance(ended), RetireJob(job_id=JOB_ID, idle_seconds=DAY)
    ended.clock.advance(DAY)
    assert remote.refusal(request) == remote.retire(request) == ("run 'run-1' has not ended",)
    ended.runs.over.add("run-1")
    assert remote.retire(request) == ()
    assert "is not confirmed" in remote.remove(request)[0]
    ids = tuple(c.checkpoint_id for c in remote.describe(JOB_ID).checkpoints)
    remote.confirm_discards(JOB_ID, ids)
    assert remote.remove(request) == ()
    assert [job.name for job in remote.jobs()] == ["sales"]


def test_a_job_with_a_name_of_its_own_never_goes_over_http(ended: ApiServer) -> None:
    ended.runs.over.add("run-1")
    remote, before = maintenance(ended), ended.rows()
    for call in (remote.refusal, remote.retire, remote.remove):
        assert "explicit name" in call(RetireJob(job_id=OWN_NAME))[0]
        with pytest.raises(AccessDeniedError, match="airflow statecheck prune"):
            call(RetireJob(job_id=OWN_NAME, is_named=True))
    assert {**ended.rows(), "statecheck_token": []} == {**before, "statecheck_token": []}


def test_a_job_with_a_name_of_its_own_goes_over_http_after_a_user_asked_for_it(ended: ApiServer) -> None:
    remote, key = maintenance(ended), new_key()
    forged = RetireJob(job_id=OWN_NAME, request_key=key)
    for call in (remote.refusal, remote.retire, remote.remove):
        assert call(forged) == ("the request to remove it has ended",)
    ended.clock.advance(1)
    ended.services.actions.request(
        UserAction(job_id=OWN_NAME, action=JobAction.PRUNE, request_key=key, requested_by="anna")
    )
    [asked] = remote.describe(OWN_NAME).actions
    request = RetireJob(job_id=OWN_NAME, request_key=asked.request_key)
    with pytest.raises(AccessDeniedError):
        maintenance(ended, CALLER).retire(request)
    assert remote.retire(request) == ()
    ids = tuple(c.checkpoint_id for c in remote.describe(OWN_NAME).checkpoints)
    remote.confirm_discards(OWN_NAME, ids)
    assert remote.remove(request) == ()
    assert [job.name for job in remote.jobs()] == [JOB]


@pytest.mark.parametrize("age", [0.0, -DAY, DAY - 1, 1e300])
def test_an_age_out_of_range_is_refused(ended: ApiServer, age: float) -> None:
    """A negative one would drop the tokens of attempts that run."""
    remote = maintenance(ended)
    with pytest.raises(InvalidConfigurationError, match="from a day"):
        remote.drop_tokens(age_seconds=age)
    with pytest.raises(InvalidConfigurationError, match="from a day"):
        remote.forget(JOB_ID, age)


def test_an_attempt_whose_driver_died_is_closed_when_its_run_is_over_and_its_token_is_dead(ended: ApiServer) -> None:
    remote, attempt = maintenance(ended), ended.attempt()
    ended.clock.advance(5 * DAY)
    assert remote.close_abandoned(JOB_ID) == ()
    ended.runs.over.add("run-1")
    assert [[ref.epoch for ref in remote.close_abandoned(JOB_ID)] for _ in range(2)] == [[], [2]]
    assert ended.post("trigger", attempt.token, {"attempt": attempt.ref, "request_key": "0" * 32}).status_code in (
        401,
        403,
    )


def test_a_token_that_expires_on_the_way_is_replaced(ended: ApiServer) -> None:
    credentials = Credentials(ended, MAINTENANCE)
    remote = maintenance(ended, credentials=credentials)
    remote.jobs()
    ended.clock.advance(TASK_LIFETIME.total_seconds() + 1)
    assert remote.forget(JOB_ID, DAY) is not None
    assert credentials.count == 2


def test_a_task_of_another_dag_is_told_which_may(ended: ApiServer) -> None:
    with pytest.raises(AccessDeniedError, match=r"statecheck_maintenance.*found one of 'nightly'"):
        maintenance(ended, CALLER).retire(RetireJob(job_id=JOB_ID))


def test_a_leader_of_aligned_checkpoints_is_no_task_and_no_stage(ended: ApiServer) -> None:
    calls = aligned(ended)
    owner = make_owner(airflow=(("dag_id", "another"),))
    leader = calls.lead(make_leadership(owner=owner))
    [attempt] = [a for a in calls.describe(OWN_NAME).attempts if a.operator_id == leader.operator_id]
    assert (attempt.epoch, attempt.owner.airflow) == (leader.epoch, ())
    stage = replace(leader, operator_id=operator_id_of("features"))
    with pytest.raises(AccessDeniedError, match="a leader of aligned checkpoints"):
        calls.handles(stage)
    with pytest.raises(AccessDeniedError, match="maintenance_dags"):
        aligned(ended, CALLER).handles(leader)


def test_a_task_leads_the_aligned_checkpoints_of_one_job_as_its_own_attempt(ended: ApiServer) -> None:
    token = OneToken(ended.task_token(CALLER))
    calls, owned = aligned(ended, credentials=token), make_leadership(owner=owner_of(CALLER))
    leader = calls.lead(owned)
    assert calls.lead(owned) == leader
    [attempt] = [a for a in calls.describe(OWN_NAME).attempts if a.operator_id == leader.operator_id]
    assert attempt.owner.airflow == CALLER.pairs
    assert calls.handles(leader).live == ()
    of_stage = calls_of(STAGE_CALLS, ended, credentials=token)
    for call, refused in [
        (lambda: of_stage.confirm_discards(leader, ()), "an attempt of a stage, found a leader"),
        (
            lambda: calls.lead(make_leadership(owner=owner_of(CALLER), job_name="other")),
            "the registration that this token",
        ),
        (lambda: calls.handles(replace(leader, epoch=leader.epoch + 1)), "bound to a job"),
        (lambda: aligned(ended, CALLER).handles(leader), "maintenance_dags"),
        (lambda: aligned(ended, OTHER_TASK).lead(make_leadership(owner=owner_of(CALLER))), "of task 'nightly/report'"),
        (
            lambda: aligned(ended, OTHER_DAG).lead(make_leadership(owner=owner_of(OTHER_DAG), job_name=JOB)),
            "of Dag 'hourly'",
        ),
    ]:
        with pytest.raises(AccessDeniedError, match=refused):
            call()
    calls.resign(leader)


POINTER = "s3://lake/savepoints/savepoint-5d2c4a-0f6f7c1e2b3a"


def restore_of(uid: str = UID, **changes: Any) -> RestoreJob:
    """Return a request for the first checkpoint of a stage, which a savepoint has copied."""
    source = make_source(POINTER, member=uid)
    member = SavedMember(uid=uid, checkpoint_id=1, generation=1, run="", source=source)
    savepoint = JobSavepoint(pointer=POINTER, members=(member,))
    return RestoreJob(job_id=OWN_NAME, savepoint=savepoint, requested_by="anybody", **changes)


def test_a_maintenance_task_restores_a_job_in_place_and_is_named(ended: ApiServer) -> None:
    dry = restores(ended).restore(restore_of(dry_run=True))
    assert ended.services.coordinator.describe(OWN_NAME).actions == ()

    restored = restores(ended).restore(restore_of())

    assert restored == dry
    assert [c.checkpoint_id for c in restored.operators[0].taken_back] == [3, 2]
    assert restored.tasks_to_run == ended.services.restoring.restore(restore_of(dry_run=True)).tasks_to_run
    [action] = ended.services.coordinator.describe(OWN_NAME).actions
    task = f"task {MAINTENANCE.dag_id}.{MAINTENANCE.task_id} of run {MAINTENANCE.run_id}"
    assert (action.requested_by, action.restore and action.restore.pointer) == (task, POINTER)


def test_only_a_maintenance_task_restores_a_job_and_only_from_the_savepoint(ended: ApiServer) -> None:
    with pytest.raises(AccessDeniedError):
        restores(ended, CALLER).restore(restore_of())
    wrong = replace(restore_of(), savepoint=replace(restore_of().savepoint, pointer="s3://lake/other"))
    with pytest.raises(InvalidConfigurationError, match="to be one of the savepoint s3://lake/other"):
        restores(ended).restore(wrong)
    empty = replace(restore_of(), savepoint=replace(restore_of().savepoint, members=()))
    with pytest.raises(InvalidConfigurationError, match=r"Expected the members of the savepoint .*, found none"):
        restores(ended).restore(empty)
    assert ended.services.coordinator.describe(OWN_NAME).actions == ()


def test_messages_about_aligned_checkpoints_may_name_thousands_of_tasks(api: ApiServer) -> None:
    rows, names = aligned(api), [f"{number:04}{'u' * 496}" for number in range(4000)]
    uids: dict[str, str] = {operator_id_of(name): name for name in names}
    leader = rows.lead(make_leadership())
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    message = AbortCheckpoints(leader=leader, scope=AbortScope.EXPIRED, reason=reason, uids=uids)
    assert rows.abort(message) == ()
    with pytest.raises(InvalidConfigurationError, match="at most 16777216 bytes"):
        rows.abort(replace(message, uids={str(number): names[0] for number in range(40_000)}))


def test_the_checkpoints_of_a_successful_run_end_when_a_maintenance_task_asks(ended: ApiServer) -> None:
    remote = maintenance(ended)
    assert remote.settle_run(JOB_ID) == ()
    ended.runs.ended["run-1"] = JobStatus.FINISHED
    [retained] = [c.checkpoint_id for c in remote.describe(JOB_ID).checkpoints if c.is_restorable][-1:]
    assert retained in remote.settle_run(JOB_ID)
    assert remote.settle_run(OWN_NAME) == ()
    assert not any(c.is_restorable for c in remote.describe(JOB_ID).checkpoints)
    with pytest.raises(AccessDeniedError):
        maintenance(ended, CALLER).settle_run(JOB_ID)


def test_ended_tokens_go(ended: ApiServer) -> None:
    remote = maintenance(ended)
    ended.clock.advance(2 * DAY)
    assert remote.drop_tokens(age_seconds=DAY, dry_run=True) == 2
    assert remote.drop_tokens(age_seconds=DAY) == 2
