"""What a coordinator does when the uids of a job's operators change, as a part of its contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, FinishAttempt, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptStatus
from airflow_provider_statecheck.exceptions import (
    ConcurrentAttemptError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.gateway.verbs import StageGateway as Gateway
from tests.contracts.runs_of_a_job import AGAIN, JOB, CurrentDags, RunningTasks, unchanged
from tests.messages import complete_checkpoint, make_owner, make_registration, make_source


def owner_of_task(task_id: str, *, dag_id: str = "orders", map_key: str = "") -> AttemptOwner:
    """Return the owner of an attempt of an Airflow task."""
    key = f"[{map_key}]" if map_key else ""
    coordinates = (("dag_id", dag_id), ("run_id", "day 1"), ("task_id", task_id), ("map_index", "-1"))
    return make_owner(logical_task=f"{dag_id}/{task_id}{key}", run_id="day 1", airflow=coordinates)


def registration(task_id: str, *dag: str, **changes: Any) -> RegisterAttempt:
    """
    Return the registration of a task whose uid is its id.

    :param dag: The other tasks of its Dag.
    """
    values: dict[str, Any] = {
        "uid": task_id,
        "owner": owner_of_task(task_id),
        "dag_uids": {each: (each,) for each in (task_id, *dag)},
        "allow_non_restored_state": False,
    }
    return make_registration(**values | changes)


def of_next_run(task_id: str, **changes: Any) -> RegisterAttempt:
    """Return the registration of a task in the run after that of :func:`owner_of_task`."""
    owner = replace(owner_of_task(task_id), run_id="day 2", run_key="2026-01-02")
    return registration(task_id, owner=owner, **changes)


def of_cleared(task_id: str, **changes: Any) -> RegisterAttempt:
    """Return the registration of a task that was cleared."""
    return registration(task_id, owner=replace(owner_of_task(task_id), clear_marker=AGAIN), **changes)


def of_script(uid: str, **changes: Any) -> RegisterAttempt:
    """Return the registration of a script, which belongs to no Dag."""
    return registration(uid, **{"owner": make_owner(), "dag_uids": None} | changes)


class OperatorUidsContract:
    """Stages that were renamed, removed and added."""

    gateway: Gateway

    @pytest.fixture
    def dags(self) -> CurrentDags:
        """Return the current tasks of Dags, as the coordinator can look them up."""
        return CurrentDags()

    def ran(self, request: RegisterAttempt, checkpoints: int = 1) -> AttemptGrant:
        """Register an attempt, complete checkpoints and end it."""
        grant = self.gateway.register(request)
        for _ in range(checkpoints):
            complete_checkpoint(self.gateway, grant.attempt)
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FINISHED))
        return grant

    def test_new_operator_is_refused_while_one_with_checkpoints_is_gone(self) -> None:
        self.ran(registration("totals"))
        with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError) as refused:
            self.gateway.register(registration("sums"))
        assert "renamed_uids={'totals': 'sums'} or uid='totals'" in str(refused.value)

    @pytest.mark.parametrize(("old", "new"), [("totals", "books.totals"), ("books.totals", "totals")])
    def test_task_that_moved_into_or_out_of_a_group_is_refused(self, old: str, new: str) -> None:
        self.ran(registration(old))
        with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match=f"uid='{old}'"):
            self.gateway.register(registration(new))
        by_uid = registration(new, uid=old, dag_uids={new: (old,)})
        assert self.gateway.register(by_uid).is_restore

    def test_task_that_changed_its_uid_is_refused(self) -> None:
        self.ran(registration("totals", uid="the name of the stage"))
        with pytest.raises(IncompatibleCheckpointError, match="'the name of the stage': 'totals'"):
            self.gateway.register(registration("totals"))

    @pytest.mark.parametrize(
        "added",
        [
            registration("sums", "totals"),
            registration("sums", dag_uids={"sums": ("sums", "totals")}),
            registration("sums", allow_non_restored_state=True),
        ],
        ids=["of the same Dag", "of a renamed task", "allowed"],
    )
    def test_new_operator_starts_with_nothing_beside_one_that_is_in_use(self, added: RegisterAttempt) -> None:
        self.ran(registration("totals"))
        grant = self.gateway.register(added)
        assert (grant.is_restore, grant.uid, grant.attempt.epoch) == (False, "sums", 1)

    def test_operator_that_took_no_checkpoint_may_go(self) -> None:
        self.ran(registration("totals"), checkpoints=0)
        assert self.gateway.register(registration("sums")).uid == "sums"

    def test_operator_that_the_job_knows_is_not_refused(self) -> None:
        self.ran(registration("totals", "sums"))
        self.ran(registration("sums", "totals"))
        assert self.gateway.register(registration("sums")).is_restore

    def test_instances_of_a_mapped_task_are_in_use_whatever_their_keys(self) -> None:
        def instance(task: str, key: str) -> RegisterAttempt:
            return registration(task, uid=f"{task}[{key}]", owner=owner_of_task(task, map_key=key))

        self.ran(instance("routes", "north"))
        self.ran(instance("routes", "south"))
        with pytest.raises(IncompatibleCheckpointError, match=r"'routes\[north\]'"):
            self.gateway.register(instance("lines", "north"))

    @pytest.mark.parametrize("status", [None, AttemptStatus.FINISHED])
    @pytest.mark.parametrize("uids", [(), ("shared",)], ids=["template", "given"])
    def test_second_task_with_a_uid_in_a_run_is_refused(
        self, status: AttemptStatus | None, uids: tuple[str, ...]
    ) -> None:
        dag_uids: dict[str, tuple[str, ...]] = {"first": uids, "second": ()}
        grant = self.gateway.register(registration("first", uid="shared[a]", dag_uids=dag_uids))
        complete_checkpoint(self.gateway, grant.attempt)
        if status is not None:
            self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=status))
        refusal = pytest.raises(InvalidConfigurationError, match=r"'shared\[a\]' at both 'first' and 'second'")
        with unchanged(self.gateway), refusal:
            self.gateway.register(registration("second", uid="shared[a]", dag_uids=dag_uids))

    @pytest.mark.parametrize("dag_uids", [{"second": ()}, {"first": ("other",), "second": ("shared",)}])
    def test_uid_that_a_task_has_given_to_another_one_goes_on(self, dag_uids: dict[str, tuple[str, ...]]) -> None:
        self.ran(registration("first", uid="shared"))
        assert self.gateway.register(registration("second", uid="shared", dag_uids=dag_uids)).is_restore

    def test_task_whose_uid_is_a_template_has_an_operator_for_each(self) -> None:
        def region(name: str) -> RegisterAttempt:
            return registration("sales", uid=f"sales {name}", dag_uids={"sales": ()})

        self.ran(region("north"))
        assert self.gateway.register(region("south")).uid == "sales south"

    # --- renamed

    def test_renamed_operator_is_taken_over_with_its_epoch_and_its_checkpoints(self) -> None:
        old = self.ran(registration("totals"), checkpoints=2)
        renamed = registration("sums", former_uids=("totals",))
        new = self.ran(renamed)
        assert (new.uid, new.attempt.operator_id, new.generation) == ("totals", old.attempt.operator_id, old.generation)
        assert (new.attempt.epoch, [c.checkpoint_id for c in new.candidates]) == (2, [2, 1])
        later = self.gateway.register(registration("sums", former_uids=("totals",)))
        assert (later.attempt.epoch, later.candidates[0].checkpoint_id) == (3, 3)
        assert [operator.uid for operator in self.gateway.describe(JOB).operators] == ["totals"]

    def test_operator_that_another_task_has_is_not_taken_over(self) -> None:
        self.ran(registration("totals"))
        renamed = registration("sums", "totals", former_uids=("totals",))
        with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match="found task 'totals' with this"):
            self.gateway.register(renamed)
        grant = self.gateway.register(replace(renamed, allow_non_restored_state=True))
        assert (grant.uid, grant.is_restore) == ("sums", False)

    def test_savepoint_of_an_operator_that_another_task_has_starts_a_second_one(self) -> None:
        self.ran(registration("totals"))
        source = make_source("memory://base/savepoint")
        grant = self.gateway.register(registration("sums", "totals", former_uids=("totals",), restore_from=source))
        assert (grant.uid, grant.is_restore) == ("sums", True)

    # --- split, and names that change hands

    def test_stage_that_is_split_gives_its_state_to_one_of_the_parts(self) -> None:
        self.ran(registration("totals"))
        both = {"paid": ("paid", "totals"), "refunded": ("refunded", "totals")}
        for task in both:
            claim = registration(task, dag_uids=both, former_uids=("totals",))
            with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match="Let one task take"):
                self.gateway.register(claim)
        one = both | {"refunded": ("refunded",)}
        assert self.ran(registration("paid", dag_uids=one, former_uids=("totals",))).uid == "totals"
        other = self.ran(registration("refunded", dag_uids=one, allow_non_restored_state=True))
        assert (other.uid, other.is_restore) == ("refunded", False)

    @pytest.mark.parametrize("parts", [["paid"], ["paid", "refunded"]])
    def test_stage_that_is_split_without_a_word_is_refused_in_each_part(self, parts: list[str]) -> None:
        self.ran(registration("totals"))
        for task in parts:
            with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match="'totals'"):
                self.gateway.register(registration(task, "paid", "refunded"))

    @pytest.mark.parametrize("first", ["totals", "sums"])
    def test_two_tasks_that_swap_their_names_are_both_refused(self, first: str) -> None:
        names = {"totals": ("totals", "sums"), "sums": ("sums", "totals")}
        self.ran(registration("totals", "sums"))
        self.ran(registration("sums", "totals"))
        for task in (first, *(names.keys() - {first})):
            swapped = registration(task, dag_uids=names, former_uids=names[task][1:])
            with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match="Set uid= of each task"):
                self.gateway.register(swapped)
        by_uid = {"totals": ("sums",), "sums": ("totals",)}
        assert self.ran(of_next_run("totals", uid="sums", dag_uids=by_uid)).is_restore

    def test_names_that_move_up_by_one_are_refused(self) -> None:
        self.ran(registration("first", "second"))
        self.ran(registration("second", "first"))
        names = {"second": ("second", "first"), "third": ("third", "second")}
        for task in names:
            moved = registration(task, dag_uids=names, former_uids=names[task][1:])
            with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError):
                self.gateway.register(moved)

    def test_new_task_with_the_old_name_of_a_renamed_one_does_not_get_its_state(self) -> None:
        names = {"sums": ("sums", "totals"), "totals": ("totals",)}
        self.ran(registration("totals"))
        self.ran(registration("sums", former_uids=("totals",), dag_uids={"sums": names["sums"]}))
        with (
            unchanged(self.gateway),
            pytest.raises(IncompatibleCheckpointError, match="of one task, found it at 'totals'"),
        ):
            self.gateway.register(of_next_run("totals", dag_uids=names))
        with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match="found task 'totals' with this"):
            self.gateway.register(of_next_run("sums", dag_uids=names, former_uids=("totals",)))

    # --- other Dags

    @pytest.mark.parametrize("task_id", ["sums", "bookkeeping.totals"])
    @pytest.mark.parametrize(
        ("old", "reason"),
        [
            ("gone", "'orders' ran last, which no longer exists"),
            ("without the task", "'orders' ran last, and none of its tasks has this uid"),
            ("paused", "'orders' ran last, which is paused"),
            ("unknown", "'orders' ran last, whose current tasks cannot be looked up"),
        ],
    )
    def test_dag_and_task_with_new_names_are_refused_while_the_old_ones_are_not_in_use(
        self, dags: CurrentDags, task_id: str, old: str, reason: str
    ) -> None:
        self.ran(registration("totals"))
        {
            "gone": lambda: dags.remove("orders"),
            "without the task": lambda: dags.put("orders", "another"),
            "paused": lambda: dags.put("orders", "totals", is_paused=True),
            "unknown": lambda: None,
        }[old]()
        renamed = registration(task_id, owner=owner_of_task(task_id, dag_id="orders_v2"))
        with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match=reason) as refused:
            self.gateway.register(renamed)
        assert f"renamed_uids={{'totals': '{task_id}'}} or uid='totals'" in str(refused.value)
        grant = self.gateway.register(replace(renamed, former_uids=("totals",)))
        assert (grant.uid, grant.is_restore) == ("totals", True)

    @pytest.mark.parametrize("old", ["gone", "without the task", "paused", "in use", "unknown"])
    def test_dag_with_a_new_id_goes_on_with_the_uid_of_its_task(self, dags: CurrentDags, old: str) -> None:
        self.ran(registration("totals"))
        if old == "gone":
            dags.remove("orders")
        elif old != "unknown":
            dags.put("orders", *([] if old == "without the task" else ["totals"]), is_paused=old == "paused")
        grant = self.gateway.register(registration("totals", owner=owner_of_task("totals", dag_id="orders_v2")))
        assert (grant.uid, grant.is_restore) == ("totals", True)
        assert ("is also that of a task of Dag 'orders'" in grant.warning) is (old == "in use")

    def test_task_that_moved_to_another_dag_goes_on_or_is_refused(self, dags: CurrentDags) -> None:
        self.ran(registration("totals", "kept"))
        dags.put("orders", "kept")
        dags.put("books", "totals", "sums")
        moved = registration("sums", owner=owner_of_task("sums", dag_id="books"))
        with (
            unchanged(self.gateway),
            pytest.raises(IncompatibleCheckpointError, match="none of its tasks has this uid"),
        ):
            self.gateway.register(moved)
        grant = self.gateway.register(registration("totals", owner=owner_of_task("totals", dag_id="books")))
        assert (grant.is_restore, grant.warning) == (True, "")

    def test_dags_that_share_a_job_go_on_each_with_its_own_stage(self, dags: CurrentDags) -> None:
        def books(**changes: Any) -> RegisterAttempt:
            return registration("sums", owner=owner_of_task("sums", dag_id="books"), **changes)

        dags.put("orders", "totals")
        dags.put("books", "sums")
        self.ran(registration("totals"))
        first = self.ran(books())
        assert (first.uid, first.is_restore, first.gone_uids) == ("sums", False, ("totals",))
        assert "starts empty in job 'sales', where another Dag has operator 'totals'" in first.warning
        for again in (self.ran(books()), self.ran(registration("totals"))):
            assert (again.is_restore, again.gone_uids, again.warning) == (True, (), "")

    def test_stage_of_another_dag_that_is_declared_as_another_step_starts_without_a_word(
        self, dags: CurrentDags
    ) -> None:
        dags.put("orders", "totals")
        self.ran(registration("totals"))
        owner = owner_of_task("sums", dag_id="books")
        grant = self.gateway.register(registration("sums", owner=owner, allow_non_restored_state=True))
        assert (grant.uid, grant.gone_uids, grant.warning) == ("sums", (), "")

    @pytest.mark.parametrize(
        ("ran", "uids", "is_in_use"),
        [
            ("sales north", (), True),
            ("sales", (), False),
            ("sums", ("sales", "sums"), True),
            ("sales[north]", ("sales",), True),
        ],
        ids=["template", "template instead of the task id", "renamed", "mapped"],
    )
    def test_task_of_another_dag_has_the_operators_that_it_may_run(
        self, dags: CurrentDags, ran: str, uids: tuple[str, ...], is_in_use: bool
    ) -> None:
        self.ran(registration("sales", uid=ran))
        dags.put("orders", sales=uids)
        added = registration("added", owner=owner_of_task("added", dag_id="books"))
        if is_in_use:
            assert self.gateway.register(added).uid == "added"
            return
        with pytest.raises(IncompatibleCheckpointError, match="none of its tasks has this uid"):
            self.gateway.register(added)

    def test_task_whose_fixed_uid_became_a_template_is_refused(self) -> None:
        self.ran(registration("sales"))
        with (
            unchanged(self.gateway),
            pytest.raises(IncompatibleCheckpointError, match="operator 'sales' with checkpoint"),
        ):
            self.gateway.register(registration("sales", uid="sales north", dag_uids={"sales": ()}))

    # --- mapped

    def test_task_that_is_mapped_from_now_on_is_refused(self) -> None:
        self.ran(registration("routes"))
        north = registration("routes", uid="routes[north]", owner=owner_of_task("routes", map_key="north"))
        with (
            unchanged(self.gateway),
            pytest.raises(IncompatibleCheckpointError, match="operator 'routes' with") as found,
        ):
            self.gateway.register(north)
        assert "set renamed_uids={'routes': 'routes[north]'}; otherwise" in str(found.value)
        assert self.gateway.register(replace(north, former_uids=("routes",))).is_restore

    def test_task_that_is_mapped_no_longer_is_refused(self) -> None:
        for key in ("north", "south"):
            self.ran(registration("routes", uid=f"routes[{key}]", owner=owner_of_task("routes", map_key=key)))
        with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match=r"operator 'routes\[north\]'"):
            self.gateway.register(registration("routes"))

    def test_instance_with_a_new_key_starts_empty_beside_the_others(self) -> None:
        for key in ("north", "south"):
            grant = self.ran(registration("routes", uid=f"routes[{key}]", owner=owner_of_task("routes", map_key=key)))
            assert (grant.uid, grant.is_restore) == (f"routes[{key}]", False)

    def test_operator_is_taken_over_after_a_try_under_the_new_uid_that_completed_nothing(self) -> None:
        self.ran(registration("totals"))
        self.gateway.register(registration("sums", allow_non_restored_state=True))
        grant = self.gateway.register(registration("sums", former_uids=("totals",)))
        assert (grant.uid, grant.is_restore) == ("totals", True)
        running = [a for a in self.gateway.describe(JOB).attempts if a.status is AttemptStatus.RUNNING]
        assert [a.operator_id for a in running] == [grant.attempt.operator_id]

    def test_operator_that_has_checkpoints_under_its_new_uid_keeps_them(self) -> None:
        self.ran(registration("totals"))
        self.ran(registration("sums", allow_non_restored_state=True))
        assert self.gateway.register(registration("sums", former_uids=("totals",))).uid == "sums"

    def test_operator_that_began_again_is_not_swapped_for_that_of_a_former_uid(self) -> None:
        self.ran(registration("totals"))
        self.ran(registration("sums", allow_non_restored_state=True), checkpoints=2)
        first = self.gateway.register(of_cleared("sums", former_uids=("totals",)))
        self.gateway.finish(FinishAttempt(attempt=first.attempt, status=AttemptStatus.FAILED))
        retry = self.gateway.register(of_cleared("sums", former_uids=("totals",)))
        assert [(grant.uid, grant.is_restore) for grant in (first, retry)] == [("sums", False)] * 2

    def test_another_run_that_works_under_the_new_uid_is_refused_and_changes_nothing(
        self, liveness: RunningTasks
    ) -> None:
        self.ran(registration("totals"))
        self.gateway.register(registration("sums", allow_non_restored_state=True))
        liveness.let_run("day 1")
        with unchanged(self.gateway), pytest.raises(ConcurrentAttemptError, match="on_overlap='wait'"):
            self.gateway.register(of_next_run("sums", former_uids=("totals",)))

    def test_dead_attempts_under_the_former_and_the_new_uid_are_both_fenced(self, liveness: RunningTasks) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(registration("totals")).attempt)
        self.gateway.register(registration("sums", allow_non_restored_state=True))
        liveness.let_run("day 2")
        grant = self.gateway.register(of_next_run("sums", former_uids=("totals",)))
        assert (grant.uid, grant.is_restore) == ("totals", True)
        running = [a for a in self.gateway.describe(JOB).attempts if a.status is AttemptStatus.RUNNING]
        assert [(a.operator_id, a.epoch) for a in running] == [(grant.attempt.operator_id, grant.attempt.epoch)]

    # --- scripts

    def test_script_is_refused_whose_uid_the_job_does_not_know(self) -> None:
        self.ran(of_script("totals"))
        with pytest.raises(
            IncompatibleCheckpointError, match=r"not that of this script.*allow_non_restored_state=True"
        ):
            self.gateway.register(of_script("sums"))

    def test_script_goes_on_with_a_uid_that_the_job_knows(self) -> None:
        self.ran(of_script("totals"))
        self.ran(of_script("sums", allow_non_restored_state=True))
        assert self.gateway.register(of_script("totals")).uid == "totals"
        assert self.gateway.register(of_script("more", former_uids=("sums",))).uid == "sums"

    @pytest.mark.parametrize("uid", ["totals", "sums"])
    def test_stage_that_moves_from_a_script_to_a_dag_keeps_its_state_or_is_refused(self, uid: str) -> None:
        self.ran(of_script("totals"))
        if uid == "totals":
            assert self.gateway.register(of_next_run(uid)).is_restore
            return
        with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match="or uid='totals'"):
            self.gateway.register(registration(uid))

    @pytest.mark.parametrize("uid", ["totals", "sums"])
    def test_stage_that_moves_from_a_dag_to_a_script_keeps_its_state_or_is_refused(
        self, dags: CurrentDags, uid: str
    ) -> None:
        self.ran(registration("totals"))
        dags.put("orders", "totals")
        if uid == "totals":
            assert self.gateway.register(of_script(uid)).uid == "totals"
            return
        with unchanged(self.gateway), pytest.raises(IncompatibleCheckpointError, match="not that of this script"):
            self.gateway.register(of_script(uid))

    # --- what sinks are told

    def test_every_attempt_is_told_which_operators_are_gone(self) -> None:
        self.ran(registration("totals", "sums", "kept"))
        self.ran(registration("kept", "totals", "sums"))
        request = registration("sums", "kept")
        first = self.ran(registration("sums", "totals", "kept"))
        assert (first.gone_uids, self.gateway.register(request).gone_uids) == ((), ("totals",))
        assert self.gateway.register(request).gone_uids == ("totals",)

    def test_operators_of_renamed_tasks_and_other_dags_are_not_gone(self, dags: CurrentDags) -> None:
        self.ran(registration("totals"))
        self.ran(
            registration("elsewhere", owner=owner_of_task("elsewhere", dag_id="other"), allow_non_restored_state=True)
        )
        dags.put("other", "elsewhere")
        grant = self.gateway.register(registration("sums", former_uids=("totals",)))
        assert grant.gone_uids == ()

    def test_script_that_starts_with_nothing_beside_others_is_told_of_none(self) -> None:
        self.ran(of_script("totals"))
        assert self.gateway.register(of_script("sums", allow_non_restored_state=True)).gone_uids == ()
        assert self.gateway.register(of_script("sums")).gone_uids == ("totals",)
