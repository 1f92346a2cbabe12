"""Demo that kills a Spark driver at 80 % of its work and shows which steps the retry restores."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document
from scripts.example_data import copy_flights

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / ".demo"
LOG = DEMO / "demo.log"
DAG, TASK = "example_resume_flights", "delay_features"
STEPS, MONTHS = 5, 12
KILL_AT = round((STEPS + MONTHS) * 0.8)
POLL_SECONDS = 0.2
LIMIT_SECONDS = 600.0
END_SECONDS = 10.0
TERMINATED = 128 + signal.SIGTERM


@dataclass
class Run:
    """Run of the example Dag."""

    date: str
    kill: bool

    @property
    def report(self) -> Path:
        """The folder of the report."""
        return DEMO / f"report_{self.date}"

    @property
    def job(self) -> str:
        """The name of the job."""
        return f"test/{DAG}/{datetime.fromisoformat(self.date + 'T00:00:00+00:00').isoformat()}"


def main() -> int:
    """Run the demo and return the exit status."""
    # The exception ends Airflow, which the demo has started, and the driver that Airflow has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    shutil.rmtree(DEMO, ignore_errors=True)
    DEMO.mkdir()
    say(f"All files are in {DEMO.relative_to(ROOT)}/, the log is {LOG.relative_to(ROOT)}.")
    say("1/5 Create Airflow's database with the tables of this provider")
    airflow("db", "migrate")
    say(f"2/5 Copy real data: {prepare_data():,} flights from New York in 2013")
    say(
        f"3/5 Run a task that computes {STEPS} DataFrames and writes a report for {MONTHS} months with Spark (Dag "
        f"{DAG})"
    )
    say(
        f"    A checkpoint saves each of these {STEPS + MONTHS} pieces of work. After {KILL_AT} of them, Spark is "
        "killed, as if its"
    )
    say("    machine were lost, and Airflow tries the task again.")
    killed = Run("2026-01-01", kill=True)
    watch(killed)
    say("4/5 Run the same task for another date without a failure, for comparison")
    undisturbed = Run("2026-01-02", kill=False)
    watch(undisturbed)
    say("5/5 What the second try computed, and what it took from the checkpoint")
    return show(killed, undisturbed)


def say(text: str) -> None:
    """Print a line without buffering."""
    print(text, flush=True)


def environment() -> dict[str, str]:
    """Return the environment for Airflow's commands."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(DEMO / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__STATECHECK__CHECKPOINT_DIR": (DEMO / "checkpoints").as_uri(),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 pyspark-shell",
    }


def airflow(*arguments: str) -> None:
    """Run one of Airflow's commands and exit if it fails."""
    command = ["airflow", *arguments]
    with LOG.open("ab") as log, started(command, log) as process:
        process.wait()
    if process.returncode != 0:
        sys.exit(f"demo: '{' '.join(command)}' ended with status {process.returncode}; see {LOG}")


@contextmanager
def started(command: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a process group of its own, which ends with the block."""
    process = subprocess.Popen(command, cwd=DEMO, env=environment(), stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process group; a driver's JVM outside it ends when its parent does."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def prepare_data() -> int:
    """Copy the input of the Dag and return the number of flights."""
    try:
        copy_flights(DEMO / "data")
    except FileNotFoundError as error:
        sys.exit(f"demo: {error}, or run make clean and make demo")
    with (DEMO / "data" / "flights.csv").open("rb") as flights:
        return sum(1 for _ in flights) - 1


def watch(run: Run) -> None:
    """Run the Dag, show its progress, and kill its driver if ``run.kill`` is set."""
    conf = json.dumps({"source": str(DEMO / "data"), "report": str(run.report)})
    began, killed = time.monotonic(), False
    with LOG.open("ab") as log:
        command = ["airflow", "dags", "test", DAG, run.date, "--conf", conf]
        with started(command, log) as process:
            while process.poll() is None and time.monotonic() - began < LIMIT_SECONDS:
                done, attempt = progress(run)
                show_progress(done, attempt, time.monotonic() - began)
                if run.kill and not killed and done >= KILL_AT:
                    killed = kill_driver(process.pid)
                time.sleep(POLL_SECONDS)
    show_progress(progress(run)[0], progress(run)[1], time.monotonic() - began)
    say("")
    if process.returncode != 0 or (run.kill and not killed):
        sys.exit(f"demo: the Dag run of {run.date} ended with status {process.returncode}; see {LOG}")


def view_of(run: Run) -> JobView | None:
    """Return the view of the run's job, ``None`` before its first attempt."""
    engine = create_engine(f"sqlite:///{DEMO / 'airflow' / 'airflow.db'}", connect_args={"timeout": 30})
    try:
        return SqlJobStore(engine).describe(job_id_of(run.job))
    except StateCheckError:
        return None
    finally:
        engine.dispose()


def progress(run: Run) -> tuple[int, int]:
    """Return the number of checkpointed units of work, and the number of the try."""
    view = view_of(run)
    if view is None:
        return 0, 1
    latest = latest_of(view)
    done = latest.counts["snapshots"] + latest.counts["items"] if latest else 0
    return done, max((a.epoch for a in view.attempts), default=1)


def latest_of(view: JobView) -> CheckpointRecord | None:
    """Return the newest completed checkpoint of the task."""
    completed = [c for c in view.of_operator(operator_id_of(TASK)) if c.is_restorable]
    return completed[-1] if completed else None


def show_progress(done: int, attempt: int, seconds: float) -> None:
    """Draw a progress line if standard output is a terminal."""
    if sys.stdout.isatty():
        bar = "#" * done + "." * (STEPS + MONTHS - done)
        print(
            f"\r    try {attempt} [{bar}] {done:2}/{STEPS + MONTHS} checkpointed, {seconds:5.1f} s", end="", flush=True
        )


def kill_driver(parent: int) -> bool:
    """Kill the driver JVM, a child of Airflow's process, with SIGKILL; return whether it was found."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        if name.endswith("(java") and int(rest.split()[1]) == parent:
            pid = int(stat.parent.name)
            os.kill(pid, signal.SIGKILL)
            say(f"\n    Killed Spark, process {pid}, with SIGKILL")
            return True
    return False


def show(killed: Run, undisturbed: Run) -> int:
    """Print the results and return the exit status."""
    view, other = view_of(killed), view_of(undisturbed)
    if view is None or other is None:
        sys.exit(f"demo: expected rows of both runs, found none; see {LOG}")
    show_table(view)
    show_times(view, other)
    return compare(killed.report, undisturbed.report, view)


def show_table(view: JobView) -> None:
    """Print a table of the steps with the try that computed each of them."""
    latest, restored = latest_of(view), view.attempts[-1].restored_from
    if latest is None or restored is None:
        sys.exit(f"demo: expected the retry to restore a checkpoint, found none; see {LOG}")
    items = next(c.counts["items"] for c in view.checkpoints if c.checkpoint_id == restored)
    document = load_document(CheckpointStorage.open((DEMO / "checkpoints").as_uri()), latest)
    row = "    {:<22}{:<12}{:<12}{:>9}{:>10}".format
    say(row("step", "try 1", "try 2", "seconds", "MB"))
    for handle in sorted(document.snapshots, key=lambda h: h.created_at):
        first = handle.epoch == 1
        seconds, megabytes = f"{handle.seconds:.1f}", f"{handle.size_bytes / 1e6:.1f}"
        tries = ("computed", "restored") if first else ("lost", "computed")
        say(row(handle.name, *tries, seconds, megabytes))
    say(row(f"months 1-{items}", "computed", "restored", "", ""))
    say(row(f"months {items + 1}-{MONTHS}", "lost", "computed", "", ""))


def show_times(view: JobView, other: JobView) -> None:
    """Print the durations of both tries and of the undisturbed run."""
    first, second = (duration(a) for a in view.attempts[-2:])
    whole = duration(other.attempts[-1])
    say(
        f"    The first try ran {first:.1f} s until it was killed, the second {second:.1f} s; without a failure the "
        f"task takes {whole:.1f} s."
    )
    summary = view.attempts[-1].restored_summary
    if summary is not None and summary.seconds_saved:
        say(
            f"    Saved by the checkpoint: {summary.seconds_saved:.1f} s of computing, which the second try did not "
            "repeat."
        )


def duration(attempt: AttemptRecord) -> float:
    """Return the duration of an attempt in seconds."""
    return ((attempt.ended_at or attempt.registered_at) - attempt.registered_at).total_seconds()


def compare(report: Path, expected: Path, view: JobView) -> int:
    """Compare the reports line by line, print further reading, and return the exit status."""
    found, wanted = (sorted(line for f in r.glob("month=*/*.json") for line in f.open()) for r in (report, expected))
    if found != wanted or not found:
        say(f"    The reports DIFFER: {len(found)} lines against {len(wanted)}; see {LOG}")
        return 1
    say(f"    The report of the killed run equals that of the other: {len(found):,} lines for {MONTHS} months.")
    latest = latest_of(view)
    say("Where to look next")
    say(f"    the task           dags/{DAG}.py")
    say(f"    what the log says  grep -E 'restores|restored|retains' {LOG.relative_to(ROOT)}")
    say(f"    the checkpoint     {latest.location if latest else '?'}")
    say("    on Airflow's pages make up, and docs/start/tour.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
