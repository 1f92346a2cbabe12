"""What goes wrong in the middle of a stage, and what must be left of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.live.components import Component
from tests.live.rest import wait_until
from tests.live.runs import Pids, StageRun, is_alive, kill

FAILED, FENCED, FINISHED = AttemptStatus.FAILED, AttemptStatus.FENCED, AttemptStatus.FINISHED

WHOLE = ["numbers", "doubled", "item a", "item b", "item c"]
RESUMED = ["numbers", "doubled", "item a", "item b", "item b", "item c"]
TOTAL = 3 * sum(2 * n for n in range(100))


@dataclass(frozen=True, slots=True)
class Try:
    """What the rows must say of one attempt."""

    status: AttemptStatus
    reason: str
    restored: str = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must be left of one stage."""

    tries: tuple[Try, ...]
    computed: list[str]
    result: object = TOTAL
    uid: str = "work"
    part: str = ""
    map_index: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of trouble; ``play`` takes the run from its trigger to where nothing but its end is left to wait for."""

    name: str
    play: Callable[[StageRun], None]
    expected: tuple[Expected, ...]
    dag_id: str = "live_stage"
    is_slow: bool = False

    @property
    def run_id(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.name)


def driver_killed(run: StageRun) -> None:
    kill(begun(run).jvm)


def task_killed(run: StageRun) -> None:
    kill(begun(run).task)


def worker_lost(run: StageRun) -> None:
    pids = begun(run)
    for pid in (pids.supervisor, pids.task, pids.jvm):
        kill(pid)


def supervisor_killed(run: StageRun) -> None:
    # The task has lost the process that it reports to; the coordinator hears of its end all the same.
    kill(begun(run).supervisor)
    run.release()
    run.wait_for_closed_attempt()


def marked_failed_then_cleared(run: StageRun) -> None:
    begun(run)
    run.mark_failed()
    run.wait_for_closed_attempt()
    assert run.wait_for_end() == "failed"
    run.clear()


def cleared_while_running(run: StageRun) -> None:
    begun(run)
    run.clear()


def cleared_after_success(run: StageRun) -> None:
    begun(run)
    run.release()
    assert run.wait_for_end() == "success"
    run.clear()


def timed_out(run: StageRun) -> None:
    run.trigger()


def scheduler_terminated(run: StageRun) -> None:
    begun(run)
    scheduler = run.deployment.scheduler
    scheduler.signal_group(signal.SIGTERM)  # as a service manager stops it, with its workers
    wait_until("the scheduler's end", lambda: not scheduler.is_running())
    run.deployment.ensure_running()


def scheduler_killed(run: StageRun) -> None:
    begun(run)
    kill_and_start_again(run, run.deployment.scheduler)


def kill_and_start_again(run: StageRun, component: Component) -> None:
    kill(component.pid)
    wait_until(f"the end of the {component.name}", lambda: not component.is_running())
    run.deployment.ensure_running()


def api_server_down(run: StageRun) -> None:
    begun(run)
    run.deployment.api_server.stop()
    run.release()
    run.wait_for_log("Retrying the call", times=3)
    run.deployment.ensure_running()


def api_server_killed(run: StageRun) -> None:
    begun(run)
    run.deployment.api_server.sweep()
    run.release()
    run.wait_for_log("Retrying the call", times=1)
    run.deployment.ensure_running()


def postgres_restarted(run: StageRun) -> None:
    _restart_postgres(run, "fast")


def postgres_crashed(run: StageRun) -> None:
    _restart_postgres(run, "immediate")


def _restart_postgres(run: StageRun, mode: str) -> None:
    begun(run)
    deployment = run.deployment
    deployment.postgres.stop(mode)
    run.release()
    run.wait_for_log("Retrying the call", times=1)
    deployment.postgres.start()
    deployment.ensure_running()


def zombie_beside_second_driver(run: StageRun) -> None:
    """Nobody ends the first driver, the second one finishes, and then the first one wakes up."""
    pids = begun(run)
    kill(pids.supervisor)
    run.mark_failed()
    assert run.wait_for_end() == "failed"
    run.clear()
    assert run.wait_for_end() == "success"
    rows, files = run.rows(), run.files()
    run.release()
    wait_until("the end of the first driver", lambda: not is_alive(pids.task))
    assert run.error().startswith("StaleAttemptError"), run.error()
    assert run.files() == files
    assert run.rows() == rows


def code_changed(run: StageRun) -> None:
    run.trigger()
    assert run.wait_for_end() == "failed"
    module = run.deployment.dags / "pipeline.py"
    module.write_text(module.read_text().replace('"id * 2 AS id"', '"id * 30 AS id"'))
    run.clear()


def mapped_list_changed(run: StageRun) -> None:
    for name, item in (("x", "b"), ("y", "c")):
        run.steer("stops_at", item, part=name)
        run.steer("release", "fail", part=name)
    run.steer("names.json", json.dumps(["x", "y"]))
    run.trigger()
    assert run.wait_for_end() == "failed"
    run.steer("names.json", json.dumps(["y", "x"]))
    run.clear("parts")


def begun(run: StageRun) -> Pids:
    run.trigger()
    return run.wait_for_stop()


AT_B = "2 steps, 1 item"
FIRST = "first attempt"


def resumed(first: AttemptStatus, reason: str) -> tuple[Expected, ...]:
    """Expect a second try that goes on at item b."""
    return (Expected(tries=(Try(first, FIRST), Try(FINISHED, reason, AT_B)), computed=RESUMED),)


AFTER_FAILURE = resumed(FAILED, "retry after an attempt that failed")
AFTER_SILENCE = resumed(FENCED, "retry after an attempt that never closed and was probably killed")
AFTER_CLEAR = resumed(FAILED, "cleared before it finished")
UNDISTURBED = (Expected(tries=(Try(FINISHED, FIRST),), computed=WHOLE),)

CASES = (
    Case(name="driver JVM killed", play=driver_killed, expected=AFTER_FAILURE),
    Case(name="task process killed", play=task_killed, expected=AFTER_SILENCE, is_slow=True),
    Case(name="marked failed, then cleared", play=marked_failed_then_cleared, expected=AFTER_CLEAR, is_slow=True),
    Case(
        name="zombie beside the second driver",
        play=zombie_beside_second_driver,
        expected=resumed(FENCED, "cleared before it finished"),
        is_slow=True,
    ),
    Case(
        name="step's code changed",
        play=code_changed,
        dag_id="live_pipeline",
        expected=(
            Expected(
                tries=(Try(FAILED, FIRST), Try(FINISHED, "cleared before it finished", "3 steps, 0 items")),
                computed=["numbers", "scaled", "summed", "scaled", "summed"],
                result=30 * sum(range(100)),
            ),
        ),
        is_slow=True,
    ),
    Case(
        name="cleared after success",
        play=cleared_after_success,
        expected=(
            Expected(tries=(Try(FINISHED, FIRST), Try(FINISHED, "cleared after success")), computed=[*WHOLE, *WHOLE]),
        ),
        is_slow=True,
    ),
    Case(name="scheduler terminated", play=scheduler_terminated, expected=AFTER_FAILURE, is_slow=True),
    Case(name="api-server killed", play=api_server_killed, expected=UNDISTURBED, is_slow=True),
    Case(name="PostgreSQL restarted", play=postgres_restarted, expected=UNDISTURBED, is_slow=True),
    Case(name="api-server down for a while", play=api_server_down, expected=UNDISTURBED, is_slow=True),
    Case(name="cleared while running", play=cleared_while_running, expected=AFTER_CLEAR, is_slow=True),
    Case(name="timed out", play=timed_out, dag_id="live_timed", expected=AFTER_FAILURE, is_slow=True),
    Case(
        name="supervisor killed",
        play=supervisor_killed,
        expected=(
            Expected(
                tries=(
                    Try(FINISHED, FIRST),
                    Try(FINISHED, "retry after an attempt that finished", "2 steps, 3 items"),
                ),
                computed=WHOLE,
            ),
        ),
        is_slow=True,
    ),
    Case(name="worker lost", play=worker_lost, expected=AFTER_SILENCE, is_slow=True),
    Case(name="scheduler killed", play=scheduler_killed, expected=AFTER_FAILURE, is_slow=True),
    Case(name="PostgreSQL crashed", play=postgres_crashed, expected=UNDISTURBED, is_slow=True),
    Case(
        name="mapped list changed",
        play=mapped_list_changed,
        dag_id="live_mapped",
        expected=(
            Expected(
                uid="work[x]",
                part="x",
                map_index=1,
                tries=(Try(FAILED, FIRST), Try(FINISHED, "cleared before it finished", AT_B)),
                computed=RESUMED,
                result=f"x {TOTAL}",
            ),
            Expected(
                uid="work[y]",
                part="y",
                map_index=0,
                tries=(Try(FAILED, FIRST), Try(FINISHED, "cleared before it finished", "2 steps, 2 items")),
                computed=[*WHOLE, "item c"],
                result=f"y {TOTAL}",
            ),
        ),
        is_slow=True,
    ),
)
