"""
Files of a mailbox: calls of a driver, their answers, the handover, and the newest attempt.

::

    <base>/<job id>/mail/<operator id>/<epoch>/handover.json                what the driver begins with
    <base>/<job id>/mail/<operator id>/<epoch>/first.json                   driver process that has the first attempt
    <base>/<job id>/mail/<operator id>/<epoch>/fenced.json                  newest attempt, written when there is one
    <base>/<job id>/mail/<operator id>/<epoch>/calls/<instance>-<number>.json
    <base>/<job id>/mail/<operator id>/<epoch>/answers/<instance>-<number>.json

Calls and answers are written once. Every process that can write to the storage can write here: all files are read
within bounds, and no decision depends on them alone, because the rows of the coordinator decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError, decode, to_json
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, mailboxes_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CorruptStateError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.gateway.verbs import MAX_BODY_BYTES
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.stored_json import read_json
from airflow_provider_statecheck.storage.uris import redact

MAX_ANSWER_BYTES = 16 << 20
"""Maximum size of an answer; the view of a job has all its retained checkpoints."""

_URI = re.compile(r"(?P<base>.+)/(?P<job>[0-9a-f]{32})/mail/(?P<operator>[0-9a-f]{32})/(?P<epoch>\d{1,18})/?")
_CALL = re.compile(r"(?P<instance>[0-9a-f]{32})-(?P<number>\d{8})\.json")


class CallName(NamedTuple):
    """Name of a call and of its answer; calls of one instance are numbered from 1."""

    number: int
    instance: str

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"{self.instance}-{self.number:08}.json"


@dataclass(frozen=True, slots=True)
class Listing:
    """Calls and answers that a listing shows; a storage may show new files late."""

    calls: Mapping[CallName, int]
    """Sizes of the calls in bytes."""
    answers: frozenset[CallName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Newest attempt that was registered while the mailbox was open."""

    epoch: int
    is_closed: bool
    """Whether a later try of the task has registered it, which ends all drivers of this mailbox."""

    def is_over(self, other: Fence) -> bool:
        """Return whether this is the one to keep."""
        return (self.is_closed, self.epoch) > (other.is_closed, other.epoch)


class Mailbox:
    """
    Files of one mailbox.

    :param attempt: Attempt that the Airflow operator registered when it opened the mailbox.
    """

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef) -> None:
        self.attempt = attempt
        self._storage = storage
        self.uri = f"{mailboxes_uri(storage.base_uri, attempt.job_id, attempt.operator_id)}/{attempt.epoch}"

    @classmethod
    def at(cls, uri: str, storage_options: Mapping[str, Any]) -> Self:
        """
        Return the mailbox at a URI.

        :param storage_options: Options of the filesystem.
        :raises InvalidConfigurationError: if the URI is not that of a mailbox.
        """
        found = _URI.fullmatch(uri)
        if found is None:
            raise InvalidConfigurationError(
                f"Expected the URI of a mailbox, which ends with <job>/mail/<operator>/<epoch>, found {redact(uri)!r}; "
                "pass the value that the Airflow operator has set."
            )
        attempt = AttemptRef(
            job_id=JobId(found["job"]), operator_id=OperatorId(found["operator"]), epoch=int(found["epoch"])
        )
        return cls(CheckpointStorage.open(found["base"], **storage_options), attempt)

    @classmethod
    def all_of(cls, storage: CheckpointStorage, attempt: AttemptRef) -> list[Self]:
        """Return the mailboxes of an operator, oldest first."""
        names = storage.list_directories(mailboxes_uri(storage.base_uri, attempt.job_id, attempt.operator_id))
        epochs = sorted(int(name) for name in names if name.isdecimal())
        refs = (AttemptRef(job_id=attempt.job_id, operator_id=attempt.operator_id, epoch=each) for each in epochs)
        return [cls(storage, ref) for ref in refs]

    def open(self, handover: Any) -> None:
        """Write the handover, from which a driver begins."""
        self._storage.write_bytes(self._file("handover.json"), to_json(handover).encode())

    def handover(self) -> Any:
        """
        Return what a driver begins with, as JSON values.

        :raises CheckpointNotFoundError: if the mailbox was removed.
        """
        return self._read("handover.json", MAX_BODY_BYTES)

    @property
    def is_open(self) -> bool:
        """Whether the mailbox has not been removed."""
        return self._storage.exists(self._file("handover.json"))

    def listing(self) -> Listing:
        """Return the names of all calls and answers, with one request for a thousand files."""
        files = self._storage.list_files(self.uri)
        return Listing(dict(_named(files.items(), "calls")), frozenset(dict(_named(files.items(), "answers"))))

    def post(self, name: CallName, call: Any) -> None:
        """Write a call; again with the same content is success."""
        self._storage.write_bytes(self._file(f"calls/{name.file}"), to_json(call).encode())

    def call(self, name: CallName) -> Any:
        """
        Return a call as JSON values.

        :raises CorruptStateError: if it is no JSON, or too large.
        :raises CheckpointNotFoundError: if it was removed.
        """
        return self._read(f"calls/{name.file}", MAX_BODY_BYTES)

    def reply(self, name: CallName, answer: Any) -> None:
        """Write an answer; the first one is kept, as two relays may carry out the same call."""
        uri = self._file(f"answers/{name.file}")
        self._once(uri, to_json(answer).encode())

    def answer(self, name: CallName) -> Any:
        """
        Return an answer as JSON values, ``None`` if there is none yet.

        :raises CorruptStateError: if it is no JSON, or too large.
        """
        return self._found(f"answers/{name.file}", MAX_ANSWER_BYTES)

    def forget(self, name: CallName) -> None:
        """Delete a call whose answer was read, then the answer, so that no relay carries out the call again."""
        for folder in ("calls", "answers"):
            self._storage.delete_file(self._file(f"{folder}/{name.file}"))

    def first_instance(self, instance: str) -> str:
        """Return the driver process that has the attempt of the mailbox: the given one, unless there is one."""
        uri = self._file("first.json")
        self._once(uri, to_json({"instance": instance}).encode())
        found = self._read("first.json", MAX_BODY_BYTES)
        return str(found.get("instance")) if isinstance(found, Mapping) else ""

    def fence(self, epoch: int, *, is_closed: bool) -> None:
        """Tell the drivers about a newer attempt; nothing is written over the registration of a later try."""
        wanted, known = Fence(is_closed=is_closed, epoch=epoch), None
        with suppress(CorruptStateError):
            known = self.fenced()
        if known is None or wanted.is_over(known):
            self._storage.write_bytes(self._file("fenced.json"), to_json(wanted).encode(), overwrite=True)

    def fenced(self) -> Fence | None:
        """Return the newest attempt, ``None`` while it is that of the mailbox."""
        found = self._found("fenced.json", MAX_BODY_BYTES)
        try:
            return None if found is None else decode(Fence, found)
        except MalformedMessageError as error:
            raise CorruptStateError(f"Expected the newest attempt in {redact(self.uri)}, found: {error}.") from error

    def remove(self) -> None:
        """Delete all files; the handover first, because without it no driver writes here."""
        self._storage.delete_file(self._file("handover.json"))
        self._storage.delete_directory(self.uri)

    def _file(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def _once(self, uri: str, data: bytes) -> None:
        try:
            self._storage.write_bytes(uri, data)
        except StorageError:
            if not self._storage.exists(uri):
                raise

    def _found(self, name: str, limit: int) -> Any:
        with suppress(CheckpointNotFoundError):
            return self._read(name, limit)
        return None

    def _read(self, name: str, limit: int) -> Any:
        uri = self._file(name)
        return read_json(self._storage.read_limited(uri, limit), uri)


def _named(files: Iterable[tuple[str, int]], folder: str) -> Iterable[tuple[CallName, int]]:
    for path, size in files:
        parent, _, name = path.rpartition("/")
        found = _CALL.fullmatch(name) if parent == folder else None
        if found is not None:
            yield CallName(int(found["number"]), found["instance"]), size


class Pace:
    """
    Pauses between two looks: short after something has happened, and longer while nothing does.

    :param shortest: First pause in seconds.
    :param longest: Longest pause in seconds.
    """

    def __init__(self, shortest: float = 0.5, longest: float = 5.0) -> None:
        self._shortest = shortest
        self._longest = longest
        self._next = shortest

    def pause(self, *, is_busy: bool = False) -> float:
        """Return the next pause in seconds."""
        pause = self._shortest if is_busy else self._next
        self._next = min(pause * _GROWTH, self._longest)
        return pause


_GROWTH = 1.3

Sleep = Callable[[float], object]
