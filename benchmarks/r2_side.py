"""Our side of R2 and W1: the state of a failed stage, its retries and its reader."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec

from airflow_provider_statecheck.spark.stages.stage_run import run_stage
from benchmarks.answering import answer
from benchmarks.r2_notes import NOTE, stage_over, write_input
from benchmarks.spark_side import CONF
from tests.sessions import start_session


class StateSide:
    """
    Build, restore and read states.

    :param work: Parent folder of the states.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._spark = start_session(CONF)
        self._spark.sparkContext.setLogLevel("OFF")

    def do(self, *, what: str, name: str, **request: Any) -> dict[str, Any]:
        """
        Answer a request.

        :param what: ``build``, ``retry``, ``copy`` or ``read``.
        :param name: Name of the state.
        """
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "build": self._build,
            "retry": self._retry,
            "copy": self._copy,
            "read": self._read,
        }
        return answers[what](self._work / name, **request)

    def _build(self, folder: Path, *, keys: int, width: int, base: str, options: dict[str, Any]) -> dict[str, Any]:
        write_input(folder / "input", keys, width)
        self._retry(folder, base=base, options=options)
        filesystem, path = fsspec.core.url_to_fs(base, **options)
        found: dict[str, Any] = filesystem.find(path, detail=True)
        files = sorted(name for name in found if "/shared/" in name)
        [metadata] = [name for name in found if name.endswith("/_metadata")]
        return {
            "pointer": metadata.rpartition("/")[0],
            "files": files,
            "bytes": sum(found[name]["size"] for name in files),
        }

    def _retry(self, folder: Path, *, base: str, options: dict[str, Any]) -> dict[str, Any]:
        """Run the stage from its last checkpoint until it first reads its state."""
        # A new file for each try, because a task of the previous try may still write its file.
        first_work = folder / f"first_work-{uuid4().hex}"
        begin = time.time()
        try:
            run_stage(
                self._spark,
                stage_over(folder / "input", first_work),
                job=folder.name,
                checkpoint_dir=base,
                metadata=f"sqlite:///{self._work}/statecheck.db",
                on_clear="resume",
                storage_options=options,
            )
        except Exception:
            if not first_work.exists():
                raise
        at = float(first_work.read_text())
        return {"seconds": at - begin, "at": at}

    def _copy(self, folder: Path, *, pointer: str, target: str) -> dict[str, Any]:
        self._state(pointer).write.parquet(target)
        return {"bytes": sum(file.stat().st_size for file in Path(target).glob("*.parquet"))}

    def _read(self, folder: Path, *, pointer: str) -> dict[str, Any]:
        begin = time.perf_counter()
        self._state(pointer).write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - begin}

    def _state(self, pointer: str) -> Any:
        from airflow_provider_statecheck.spark.state_dataframes import read_state

        return read_state(self._spark, pointer, NOTE.name)


def main() -> None:
    """Answer requests until standard input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    work = Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    answer(StateSide(work).do)


if __name__ == "__main__":
    main()
