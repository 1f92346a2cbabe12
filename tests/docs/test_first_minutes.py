"""What a new user tries first, from the pages: the Dag of the README, killed and resumed, and the quickstart."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.outputs import lines_missing
from tests.docs.pages import README, ROOT, Block, blocks_of
from tests.docs.runner import ROOTED
from tests.standalone_cluster import SPARK_HOME

LIMIT_SECONDS = 600
KILLED_AT = "4 finished items"
QUICKSTART = ROOT / "docs" / "start" / "quickstart.md"
FOLLOWED = (README, QUICKSTART)
"""Pages with files that their reader saves."""
NOT_RUN = ("pip ", "export ", "airflow db migrate", "airflow standalone")
"""What the fixtures do, and ``tests/packaging``, which runs all of ``airflow standalone``."""
_HOURS = re.compile(r"time\.sleep\(\d+\)(?=  # stands for hours of work)")
SPARK = (
    "--master local[2] --driver-memory 512m --conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
    "--conf spark.sql.shuffle.partitions=2 pyspark-shell"
)
pytestmark = pytest.mark.spark


def environment(work: Path) -> dict[str, str]:
    path = (str(Path(sys.executable).parent), str(SPARK_HOME / "bin"), os.environ["PATH"])
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "PYSPARK_SUBMIT_ARGS": SPARK,
        "AIRFLOW__CORE__DAGS_FOLDER": str(work / "dags"),
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
        "AIRFLOW__STATECHECK__CHECKPOINT_DIR": f"file://{work}/checkpoints",
    }


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Take the place of the root of the filesystem."""
    for folder in ("tmp", "dags", "data"):
        (tmp_path / folder).mkdir()
    return tmp_path


class Reader:
    """Does what a page says, and keeps what is printed."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._printed = ""
        self.compared = 0

    def read(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.file:
                (self._work / block.file).write_text(self._here(block.code))
            elif block.language == "bash":
                self._printed = "".join(map(self._run, block.code.splitlines()))
            elif block.output == "above":
                assert lines_missing(block.code, self._printed) == [], f"{block.name}:\n{self._printed[-6000:]}"
                self.compared += 1

    def _run(self, command: str) -> str:
        if command.startswith(NOT_RUN):
            return ""
        done = subprocess.run(
            ["bash", "-c", self._here(command)],
            cwd=self._work,
            env=environment(self._work),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return done.stdout

    def _here(self, code: str) -> str:
        return _HOURS.sub("time.sleep(1)", ROOTED.sub(f"{self._work}/", code))


def sections(page: Path) -> tuple[list[Block], list[Block]]:
    """Return the blocks of the quickstart before its Dag, and from there on."""
    lines = page.read_text().splitlines()
    border = lines.index("## The same in a Dag") + 1
    blocks = blocks_of(page)
    return [block for block in blocks if block.line < border], [block for block in blocks if block.line > border]


def test_the_script_of_the_quickstart_fails_and_resumes_as_the_page_shows(work: Path) -> None:
    reader = Reader(work)
    reader.read(sections(QUICKSTART)[0])

    assert reader.compared == 2


def test_the_dag_of_the_quickstart_logs_what_the_page_shows(work: Path, airflow_db: Path) -> None:
    reader = Reader(work)
    reader.read(sections(QUICKSTART)[1])

    assert reader.compared >= 1


def write_events(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    days = [f"2026-01-{day:02}" for day in range(1, 11)]
    pq.write_table(pa.table({"user_id": list(range(1000)) * 10, "day": days * 1000}), folder / "part-0.parquet")


def kill_driver(process: subprocess.Popen[bytes], log: Path) -> None:
    """Kill the driver once enough items are finished."""
    end = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None and time.monotonic() < end:
        printed = log.read_text(errors="replace")
        if KILLED_AT in printed:
            [pid] = re.findall(r"Driver JVM started as process (\d+)", printed)
            os.kill(int(pid), signal.SIGKILL)
            return
        time.sleep(0.02)  # a poll of another process's log
    pytest.fail(f"no checkpoint with {KILLED_AT}:\n{log.read_text(errors='replace')[-6000:]}")


def test_the_dag_of_the_readme_resumes_after_a_kill_as_it_shows(work: Path, airflow_db: Path) -> None:
    blocks = blocks_of(README)
    [dag] = [block for block in blocks if block.file]
    [shown] = [block for block in blocks if block.output == "killed"]
    write_events(work / "data" / "events")
    (work / str(dag.file)).write_text(ROOTED.sub(f"{work}/", dag.code))
    log = work / "run.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "airflow", "dags", "test", "nightly", "2026-01-01"]
        process = subprocess.Popen(command, env=environment(work), cwd=work, stdout=output, stderr=output)
        try:
            kill_driver(process, log)
            assert process.wait(LIMIT_SECONDS) == 0
        finally:
            process.kill()

    assert len(dag.code.splitlines()) == 15
    assert len(shown.code.splitlines()) == 6
    assert lines_missing(shown.code, log.read_text(errors="replace")) == []
    assert len(list((work / "data" / "by_day").iterdir())) == 10


def test_numbers_and_cut_texts_may_differ_and_words_may_not() -> None:
    printed = "12:00 [info] Step a restored: 10 rows; saved 2 min\nStep b computed in 3.5 s"

    assert lines_missing("Step a restored: 7 rows; saved 24 s\nStep b …", printed) == []
    assert lines_missing("Step b …\nStep a restored: 7 rows; saved 24 s", printed) == [
        "Step a restored: 7 rows; saved 24 s"
    ]
    assert lines_missing("Step a computed in 3 s", printed) == ["Step a computed in 3 s"]
