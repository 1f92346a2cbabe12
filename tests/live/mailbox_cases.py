"""What goes wrong around a driver without a network, and what must be left of it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from tests.live.mailbox_runs import MailboxRun
from tests.live.rest import wait_until
from tests.live.runs import Pids, is_alive, kill

HASTY_SECONDS = 5
"""Timeout of checkpoints in the Dag ``live_mailbox_hasty``."""
REMEMBERED = "spark_job_id"
"""Key of the task state with the id of a driver in a cluster."""

WHOLE = ["numbers", "doubled", "item a", "item b", "item c"]
OUTPUT = [[item, sum(2 * n for n in range(100))] for item in "abc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxCase:
    """One kind of trouble; ``play`` takes the run from its trigger to where only its end is left to wait for."""

    name: str
    play: Callable[[MailboxRun], object]
    attempts: tuple[AttemptStatus, ...]
    tries: int = 2
    dag_id: str = "live_mailbox"
    is_slow: bool = True

    @property
    def is_on_cluster(self) -> bool:
        return self.dag_id == "live_mailbox_cluster"

    @property
    def is_deferred(self) -> bool:
        return self.dag_id == "live_mailbox_deferred"

    @property
    def run_id(self) -> str:
        return self.name.replace(" ", "-")


def undisturbed(run: MailboxRun) -> None:
    run.release()
    run.trigger()


def driver_killed(run: MailboxRun) -> None:
    kill(at_the_last_part(run).driver)


def driver_started_again(run: MailboxRun) -> None:
    run.steer("restarts", "once")
    driver_killed(run)


def task_killed(run: MailboxRun) -> None:
    """The driver computes its last part after the death of its task, and has nobody to tell."""
    pids = at_the_last_part(run)
    kill(pids.task)
    run.release()
    assert run.wait_for_end() == "success"
    wait_for_end_of_driver(run, pids)


def task_of_cluster_killed(run: MailboxRun) -> None:
    """The driver runs on in its cluster, and the retry reconnects to it."""
    pids = at_the_last_part(run)
    wait_until("the id of the driver", lambda: REMEMBERED in run.task_state())
    kill(pids.task)
    run.release()


def relay_stopped(run: MailboxRun) -> None:
    """The task stands still between the trigger of a checkpoint and its acknowledgement, and lives on."""
    run.steer("stops_at", "b")
    run.trigger()
    pids = run.wait_for_stop()
    wait_until("a checkpoint that is being taken", lambda: run.checkpoints(CheckpointStatus.PENDING))
    kill(pids.task, signal.SIGSTOP)
    [late] = run.checkpoints(CheckpointStatus.PENDING)
    deadline = late.triggered_at + timedelta(seconds=2 * HASTY_SECONDS)
    wait_until("the timeout of the checkpoint", lambda: datetime.now(UTC) > deadline)
    kill(pids.task, signal.SIGCONT)
    wait_until("a checkpoint that came too late", lambda: run.checkpoints(CheckpointStatus.ABORTED))
    run.release()


def heartbeats_stopped(run: MailboxRun) -> None:
    """The task stands still until Airflow gives it up, and goes on beside its retry."""
    pids = at_the_last_part(run)
    for pid in (pids.supervisor, pids.task):
        kill(pid, signal.SIGSTOP)
    wait_until("the attempt of the retry", lambda: len(run.job().attempts) == 2)
    for pid in (pids.supervisor, pids.task):
        kill(pid, signal.SIGCONT)
    run.release()
    assert run.wait_for_end() == "success"
    # The first driver learns of its end from its mailbox, unless its task ends it before.
    wait_until("the end of the first try", lambda: not is_alive(pids.task) and not is_alive(pids.driver))


def zombie_after_retry(run: MailboxRun) -> None:
    """The first driver stands still until its retry has succeeded, and then wakes up."""
    pids = at_the_last_part(run)
    kill(pids.task)
    # Not earlier, because Linux hangs up on processes that stand still when their parent dies.
    wait_until("the end of the first task", lambda: not is_alive(pids.task))
    for pid in (pids.driver, pids.jvm):
        kill(pid, signal.SIGSTOP)
    assert run.wait_for_end() == "success"
    rows, files = run.rows(), run.files()
    run.release()
    for pid in (pids.driver, pids.jvm):
        kill(pid, signal.SIGCONT)
    wait_for_end_of_driver(run, pids)
    assert run.files() == files
    assert run.rows() == rows


def driver_of_deferred_task_killed(run: MailboxRun) -> None:
    kill(deferred_at_the_last_part(run).driver)


def driver_of_deferred_task_started_again(run: MailboxRun) -> None:
    """The new process has to wait until its task has resumed, and computes the last part while it is deferred again."""
    run.steer("restarts", "once")
    driver_of_deferred_task_killed(run)


def triggerer_killed(run: MailboxRun) -> None:
    """The driver computes its last part while no triggerer runs, and the next one carries its calls."""
    deferred_at_the_last_part(run)
    run.deployment.triggerer.signal_group(signal.SIGKILL)
    run.release()
    run.deployment.ensure_running()


def deferred_at_the_last_part(run: MailboxRun) -> Pids:
    run.trigger()
    pids = run.wait_for_deferral()
    run.wait_for_items(2)
    return pids


def at_the_last_part(run: MailboxRun) -> Pids:
    """Wait until the last of five parts is computed, and the others are in a checkpoint."""
    run.trigger()
    pids = run.wait_for_stop()
    run.wait_for_items(2)
    return pids


def wait_for_end_of_driver(run: MailboxRun, pids: Pids) -> None:
    wait_until("the end of the first driver", lambda: not is_alive(pids.driver))
    assert run.error().startswith("StaleAttemptError"), run.error()


FAILED, FENCED, FINISHED = AttemptStatus.FAILED, AttemptStatus.FENCED, AttemptStatus.FINISHED

CASES = (
    MailboxCase(name="driver killed", play=driver_killed, attempts=(FAILED, FINISHED)),
    MailboxCase(name="undisturbed", play=undisturbed, attempts=(FINISHED,), tries=1),
    MailboxCase(name="driver started again", play=driver_started_again, attempts=(FENCED, FINISHED), tries=1),
    MailboxCase(name="task killed", play=task_killed, attempts=(FENCED, FINISHED)),
    MailboxCase(name="relay stopped", play=relay_stopped, attempts=(FINISHED,), tries=1, dag_id="live_mailbox_hasty"),
    MailboxCase(
        name="task of a cluster killed",
        play=task_of_cluster_killed,
        attempts=(FINISHED,),
        dag_id="live_mailbox_cluster",
    ),
    MailboxCase(
        name="triggerer killed",
        play=triggerer_killed,
        attempts=(FINISHED,),
        tries=1,
        dag_id="live_mailbox_deferred",
        is_slow=False,
    ),
    MailboxCase(
        name="driver of a deferred task killed",
        play=driver_of_deferred_task_killed,
        attempts=(FAILED, FINISHED),
        dag_id="live_mailbox_deferred",
    ),
    MailboxCase(
        name="driver of a deferred task started again",
        play=driver_of_deferred_task_started_again,
        attempts=(FENCED, FINISHED),
        tries=1,
        dag_id="live_mailbox_deferred",
    ),
    MailboxCase(name="heartbeats stopped", play=heartbeats_stopped, attempts=(FENCED, FINISHED)),
    MailboxCase(name="zombie after a retry", play=zombie_after_retry, attempts=(FENCED, FINISHED)),
)
