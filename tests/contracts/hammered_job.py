"""A job whose state is read without a pause while its checkpoints replace each other, and the readers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnClear
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.queryable.queries import PythonKeys, StateQuery, StateReply
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_files import CheckpointContent
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.writing.canonical import rescale_max_parallelism
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document
from tests.messages import make_owner, make_registration, present, source_at
from tests.written_state import StatefulJob

KEYS = tuple(f"account {n}" for n in range(16))
NAME = "balances"


class HammeredJob:
    """
    A stage whose driver takes checkpoints and retains one; each checkpoint holds its number under every key.

    :param store: The rows.
    :param storage: The files.
    :param backend: The state backend.
    """

    def __init__(self, store: JobStore, storage: CheckpointStorage, backend: Any) -> None:
        self.storage = storage
        self.completed = 0
        """Number of the latest completed checkpoint."""
        self.values: dict[int, int] = {}
        """What each checkpoint holds under every key, by its id."""
        self._coordinator = AttemptCoordinator(store)
        self._function = StatefulJob(
            storage, backend, [ValueStateDescriptor("balance", int, queryable_name=NAME)], job_name="sales"
        )
        self._attempt: StageAttempt | None = None
        self._restarts = itertools.count(1)

    @property
    def job_id(self) -> JobId:
        return job_id_of("sales")

    def begin(self, parallelism: int, **registration: Any) -> None:
        """Begin an attempt that restores the latest checkpoint."""
        values = {"storage_base": self.storage.base_uri, "uid": self._function.stage, "num_retained": 1}
        self._attempt = StageAttempt(
            self._coordinator, self.storage, make_registration(job_name="sales", **values | registration)
        )
        restored = self._attempt.restore()
        self._function.open(parallelism, restored.document.operator_states[0] if restored else None)
        if restored is not None:
            self.values[restored.checkpoint.checkpoint_id] = self.completed

    def checkpoint(self) -> None:
        """Write the next number under every key, take a checkpoint, and delete the files that it replaces."""
        assert self._attempt is not None
        pending = present(self._attempt.begin_checkpoint(None))
        number = self.completed + 1
        self.values[pending.checkpoint_id] = number
        for key in KEYS:
            self._function.state(key, "balance").update(number)
        self._function.taken = pending.checkpoint_id - 1
        content = CheckpointContent(operator_states=(self._function.operator(),), state={"stage": {"now_ms": 1}})
        assert self._attempt.complete_checkpoint(pending, content) is not None
        self.completed = number

    def restart_with(self, max_parallelism: int, parallelism: int) -> None:
        """Start over from a savepoint of the latest checkpoint with another maximum parallelism."""
        self.finish()
        source = self._rescaled(max_parallelism)
        self._function.max_parallelism = max_parallelism
        self.begin(
            parallelism,
            restore_from=source,
            owner=make_owner(clear_marker=f"restart {next(self._restarts)}"),
            on_clear=OnClear.RESTART,
        )

    def finish(self) -> None:
        """End the attempt, which may then delete the checkpoint that it restored."""
        present(self._attempt).finish(AttemptStatus.FINISHED)

    def close(self) -> None:
        self._function.close()

    def _rescaled(self, max_parallelism: int) -> RestoreSource:
        assert self._attempt is not None
        latest = present(self._attempt.latest)
        directory = new_savepoint_uri(self.storage.base_uri, self.job_id)
        document = load_document(self.storage, latest)
        rescale_max_parallelism(self.storage, document, directory=directory, max_parallelism=max_parallelism)
        found: RestoreSource = present(source_at(self.storage, directory, self._function.stage, mode=RestoreMode.CLAIM))
        return found


class Reader(Protocol):
    """What a user reads with."""

    def get(self, query: StateQuery) -> StateReply: ...


@dataclass(frozen=True)
class Answer:
    """Reply to a reader, or the error that it got instead."""

    reply: StateReply | StateCheckError
    oldest: int
    """Number of the checkpoint that was the latest one before the request."""
    newest: int
    """Number of the checkpoint that may have been completed before the reply."""


@dataclass
class Readers:
    """
    Readers that ask for all keys and for single keys in turn until the writer has finished.

    :param reader: What they read with, shared by all threads.
    """

    job: HammeredJob
    reader: Reader
    answers: list[Answer] = field(default_factory=list)

    @contextmanager
    def running(self, threads: int) -> Iterator[None]:
        """Read in the background; an unexpected error of a reader is raised at the end."""
        ended = Event()
        with ThreadPoolExecutor(threads) as pool:
            readers = [pool.submit(self._read, ended, number) for number in range(threads)]
            try:
                yield
            finally:
                ended.set()
            for each in readers:
                each.result()

    def _read(self, ended: Event, number: int) -> None:
        single = itertools.cycle((key,) for key in KEYS[number:] + KEYS[:number])
        for keys in itertools.chain.from_iterable((KEYS, next(single)) for _ in itertools.repeat(None)):
            if ended.is_set():
                return
            self.answers.append(self._answer(keys))

    def _answer(self, keys: tuple[str, ...]) -> Answer:
        oldest = self.job.completed
        try:
            found: Any = self.reader.get(StateQuery(job_id=self.job.job_id, name=NAME, keys=PythonKeys(keys)))
        except StateCheckError as error:
            found = error
        return Answer(found, oldest, self.job.completed + 1)
