"""
Calls of stages: their interface ``StageGateway``, their form over HTTP, and their retries.

The methods of an interface are the table of its calls: a call has the name, the parameters, the reply and the
description of its method. Calls in :data:`_READS` read rows by a path, all others send a message to the path of their
name. The HTTP clients and the routes of the server are made from these tables, so a new call is one method of the
interface and one of the coordinator.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cached_property, partial
from types import NoneType
from typing import Annotated, Any, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote, urlencode

from airflow_provider_statecheck.checkpoint.codec import encode, read_reply
from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AttemptGrant,
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    ReportProgress,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, OnOverlap, RowsVersion
from airflow_provider_statecheck.checkpoint.store import JobReads
from airflow_provider_statecheck.exceptions import ConcurrentAttemptError, CoordinatorError, StateCheckError
from airflow_provider_statecheck.storage.failures import repeated

_READS = {
    "jobs": "jobs",
    "describe": "jobs/{job_id}",
    "checkpoint": "jobs/{job_id}/checkpoints/{checkpoint_id}",
    "checkpoints": "jobs/{job_id}/checkpoints",
    "latest": "jobs/{job_id}/operators/{operator_id}/latest",
    "latest_checkpoints": "jobs/{job_id}/latest",
}
"""Paths of the calls that read, by method, with the names of parameters in braces; the others are in the query."""


class StageGateway(JobReads, Protocol):
    """
    Calls of a stage to its coordinator, and the table from which this module derives the API over HTTP.

    An attempt calls :meth:`register` once and :meth:`confirm_restore` after a restore. For each checkpoint it calls
    :meth:`trigger`, then :meth:`acknowledge` or :meth:`decline`. It confirms the effects that it carried out with
    :meth:`confirm_discards` and :meth:`confirm_commits`, tells what takes it long with :meth:`report_progress`, and
    ends with :meth:`finish`.

    All calls are idempotent: a call that is repeated after a lost reply takes effect once and returns the effects that
    are open now. Calls of a replaced attempt raise ``StaleAttemptError`` and change nothing.
    """

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        """
        Fence all earlier attempts of the operator and return the candidates to restore.

        :raises InvalidConfigurationError: if a setting is out of range, or another instance of the mapped task has the
            same map key.
        :raises ConcurrentAttemptError: if another task, or another run of the task, is still running the operator.
        :raises RunSupersededError: if a later run has already advanced the state.
        :raises NoRestorableCheckpointError: if the operator had state and none of it can be restored.
        :raises IncompatibleCheckpointError: if the operator is new and another operator of the job, which has
            checkpoints, no longer has a task.
        """

    def adopt(self, attempt: AttemptRef, owner: AttemptOwner) -> None:
        """
        Transfer a running attempt to a later try of the same task, without interrupting its driver.

        The try that owns an attempt adopts it when it is resumed after a deferral, also if the attempt has ended.

        :param owner: New owner: the same try, or a later one of the same logical task in the same run.
        :raises StaleAttemptError: if the attempt has ended, was replaced, or belongs to another task or run.
        """

    def confirm_restore(self, request: ConfirmRestore) -> None:
        """
        Record the restored checkpoint, or that the attempt starts over, and mark skipped candidates as unusable.

        Unusable checkpoints do not count towards retention. A savepoint that was restored becomes a checkpoint of the
        operator, which owns it if the request claims it.

        :raises StaleAttemptError: if a newer attempt has registered.
        :raises CheckpointNotFoundError: if the checkpoint is not a completed checkpoint of this operator.
        :raises SavepointClaimedError: if another operator has claimed the savepoint.
        """

    def report_progress(self, request: ReportProgress) -> None:
        """
        Record what an attempt has restored and what it is working on; pages show it, and no decision depends on it.

        :raises StaleAttemptError: if a newer attempt has registered or this one has ended.
        """

    def trigger(self, request: TriggerCheckpoint) -> PendingCheckpoint:
        """
        Allocate the id of a new checkpoint, or return the checkpoint with the same request key.

        :raises StaleAttemptError: if a newer attempt has registered or this one has ended.
        :raises InvalidConfigurationError: if the timeout is out of range, or only one of ``serves`` and
            ``savepoint_dir`` is set.
        :raises CheckpointNotFoundError: if the savepoint request to serve is not open.
        """

    def acknowledge(self, request: AcknowledgeCheckpoint) -> AcknowledgeReply:
        """
        Complete a checkpoint, abort older pending checkpoints and subsume those beyond retention.

        :raises StaleAttemptError: if a newer attempt has registered or this one has ended.
        :raises InvalidConfigurationError: if the metadata file is not in the directory of the checkpoint.
        """

    def decline(self, request: DeclineCheckpoint) -> OpenEffects:
        """
        Abort a pending checkpoint of this attempt and ignore any other checkpoint.

        :raises StaleAttemptError: if a newer attempt has registered.
        """

    def confirm_discards(self, attempt: AttemptRef, checkpoint_ids: tuple[int, ...]) -> None:
        """
        Record that the files of subsumed or aborted checkpoints are deleted.

        :raises StaleAttemptError: if a newer attempt has registered.
        """

    def confirm_commits(
        self, attempt: AttemptRef, checkpoint_ids: tuple[int, ...], seconds: float | None = None
    ) -> OpenEffects:
        """
        Record that a sink committed the output of checkpoints, and subsume those retained only for their commit.

        A checkpoint carries the uncommitted output of older checkpoints. The confirmation therefore covers the older
        checkpoints of the same generation too. Ids of other checkpoints are ignored.

        :param seconds: Time of the commits, for display; ``None`` if it was not measured.
        :raises StaleAttemptError: if a newer attempt has registered.
        """

    def finish(self, request: FinishAttempt) -> OpenEffects:
        """
        Close an attempt: abort its pending checkpoints, release its pin and record the damaged snapshots that it found.

        Afterwards remove old rows of the operator, which bounds their number on installations without maintenance.

        :raises InvalidConfigurationError: if the status is not a final one.
        :raises StaleAttemptError: if a newer attempt has registered.
        :raises OpenCommitError: if the attempt is to end as finished but its sink has open commits.
        """


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A call of the API."""

    name: str
    """Name of the method of the interface, and of the service behind the API."""
    path: str
    service: str
    """Name of the service that answers."""
    signature: inspect.Signature
    """Signature of the method without ``self``."""
    parameters: Mapping[str, Any]
    """Types of the parameters, by name."""
    reply: Any
    description: str

    @property
    def is_read(self) -> bool:
        """Whether the call reads rows, and sends no message."""
        return self.name in _READS

    @property
    def reads_one_row(self) -> bool:
        """Whether the path names a single row: a missing one is status 404 on the wire, and ``None`` for a caller."""
        return self.is_read and "checkpoint_id" in self.parameters

    @cached_property
    def message(self) -> Any:
        """Class of the message: that of the parameter ``request``, or one whose fields are the parameters."""
        if self.takes_message:
            return self.parameters["request"]
        # Unique, unlike the name of the method: the description of the API names the class.
        name = self.path.title().replace("/", "").replace("-", "")
        defaults = {p.name: p.default for p in self.signature.parameters.values() if p.default is not p.empty}
        declared = itertools.starmap(_field, self.parameters.items())
        return make_dataclass(name, declared, namespace=defaults, frozen=True, kw_only=True)

    @cached_property
    def takes_message(self) -> bool:
        """Whether a parameter is the message."""
        return "request" in self.parameters

    def message_of(self, *arguments: Any, **named: Any) -> Any:
        """Return the message of a call with these arguments."""
        given = self.signature.bind(*arguments, **named).arguments
        return given["request"] if self.takes_message else self.message(**given)

    def address(self, **given: Any) -> str:
        """Return the path and the query of a call that reads; ids in the path may come from a user."""
        path = self.path.format_map({name: quote(str(value), safe="") for name, value in given.items()})
        others = (value for name, value in given.items() if f"{{{name}}}" not in self.path and value is not None)
        query = {name: value for each in others for name, value in _query(each).items() if value is not None}
        return f"{path}?{urlencode(query)}" if query else path

    def decoded(self, data: Any) -> Any:
        """
        Decode the JSON of the reply.

        :raises CoordinatorError: if the reply does not match, because the server has another version.
        """
        return None if self.reply is NoneType else read_reply(self.reply, data)

    def answer(self, target: Any, message: Any) -> Any:
        """Return what the method of an object returns for the message of a caller."""
        method = getattr(target, self.name)
        return method(message) if self.takes_message else method(**vars(message))


def _field(name: str, kind: Any) -> Any:
    # The annotation of a parameter may have the metadata of a field, such as an alias.
    if get_origin(kind) is not Annotated:
        return name, kind
    plain, metadata = get_args(kind)
    return name, plain, field(metadata=metadata)


def _query(value: Any) -> dict[str, Any]:
    if isinstance(value, RowsVersion):
        return {"known_version": value.number, "seen_at": value.seen_at.isoformat()}
    return dict(encode(value))


def verbs_of(interface: type, folder: str, service: str | None = None) -> dict[str, Verb]:
    """
    Return the calls of an interface, by name.

    :param folder: Folder of the paths of the calls that send a message.
    :param service: Name of the service that answers; by default that of the folder.
    """
    names = dict.fromkeys(name for kind in interface.__mro__ for name in vars(kind) if name[0] != "_")
    return {name: _verb(getattr(interface, name), folder, service or folder) for name in names}


def _verb(method: Any, folder: str, service: str) -> Verb:
    name, signature = method.__name__, inspect.signature(method)
    hints = get_type_hints(method, include_extras=True)
    return Verb(
        name=name,
        service=service,
        signature=signature.replace(parameters=tuple(signature.parameters.values())[1:]),
        path=_READS.get(name) or f"{folder}/{name.replace('_', '-')}",
        reply=hints.pop("return"),
        parameters=hints,
        # Without the fields of the docstring, such as its errors.
        description=(inspect.getdoc(method) or "").partition("\n\n:")[0].replace("``None``", "null"),
    )


STAGE_CALLS = verbs_of(StageGateway, "attempts", "coordinator")
"""Calls of a stage; the field ``attempt`` of a message names the attempt, which the token must be bound to."""


MOUNT_PATH = "/statecheck"
VERSION_PATH = "/v1"
JOB_PAGES = "/jobs"
MAX_BODY_BYTES = 1 << 20
"""Maximum size of a message."""
MAX_ALIGNED_BODY_BYTES = 16 << 20
"""Maximum size of a message about aligned checkpoints, which may name thousands of tasks."""


CHALLENGE_KEY = "statecheck.challenge"


def challenge_of(secret: str) -> str:
    """Return the hash that a task writes into its task state store before it sends the secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


_PLAIN = (str, int, float, bool, type(None))
_RESERVED = ("self", "message")
"""Parameters of ``StateCheckError.__init__``, which attributes cannot use as names."""


def encode_error(error: StateCheckError) -> dict[str, Any]:
    """Encode an error as JSON, without known secrets and without attributes that are not plain values."""
    plain = {name: value for name, value in vars(error).items() if _is_plain(value)}
    attributes = {name: masked(value) if isinstance(value, str) else value for name, value in plain.items()}
    return {"code": error.code, "message": masked(str(error)), "attributes": attributes}


def decode_error(data: dict[str, Any]) -> StateCheckError:
    """Decode an error from JSON; an unknown code results in a ``CoordinatorError``."""
    kind = _CLASSES.get(str(data["code"]), CoordinatorError)
    return kind(str(data["message"]), **_attributes(data))


def _attributes(data: dict[str, Any]) -> dict[str, Any]:
    sent = data.get("attributes")
    return {name: value for name, value in sent.items() if name not in _RESERVED} if isinstance(sent, Mapping) else {}


def _is_plain(value: object) -> bool:
    # JSON has no infinity or NaN; with such a value, the server could not send the reply.
    return isinstance(value, _PLAIN) and (not isinstance(value, float) or math.isfinite(value))


def _tree(kind: type[StateCheckError]) -> Iterator[type[StateCheckError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


# A subclass without its own code is decoded as the class whose code it inherits.
_CLASSES = {kind.code: kind for kind in _tree(StateCheckError) if "code" in vars(kind)}


log = logging.getLogger(__name__)

Gateway = TypeVar("Gateway")
Reply = TypeVar("Reply")

DEFAULT_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0)
OUTAGE_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Long enough for a restart of the api-server; Airflow fails a task without it soon after."""


def retrying(
    gateway: Gateway,
    pauses_seconds: tuple[float, ...] = DEFAULT_PAUSES_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Gateway:
    """
    Return a gateway whose calls are repeated after retryable errors, see :func:`repeat`.

    :param gateway: Gateway of any interface; all its calls are idempotent.
    """
    return cast(Gateway, _Retried(gateway, partial(repeat, pauses_seconds=pauses_seconds, sleep=sleep)))


class _Retried:
    def __init__(self, target: Any, repeated: Callable[[Callable[[], Any]], Any]) -> None:
        self._target = target
        self._repeated = repeated

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._target, name)
        return lambda *arguments, **named: self._repeated(partial(call, *arguments, **named))


def repeat(
    call: Callable[[], Reply],
    pauses_seconds: tuple[float, ...] = DEFAULT_PAUSES_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> Reply:
    """
    Call a function, and call it again after a pause while it raises a retryable error.

    :param call: Idempotent function.
    :param pauses_seconds: Pause before each retry, in seconds; their number is the number of retries.
    :param sleep: Function that sleeps for a number of seconds.
    """
    return repeated(call, pauses_seconds, _is_retryable, sleep)


def _is_retryable(error: Exception, pause: float) -> bool:
    if not (isinstance(error, CoordinatorError) and error.retryable):
        return False
    log.warning("Retrying the call of the coordinator in %s s: %s", pause, error)
    return True


Register = Callable[[RegisterAttempt], AttemptGrant]

_PAUSE_SECONDS = 10.0


def registering(register: Register, on_overlap: OnOverlap, sleep: Callable[[float], None] = time.sleep) -> Register:
    """
    Return a function that registers an attempt according to ``on_overlap``.

    A registration that waits has no limit; the timeout of the task limits it.

    :param register: Function that registers an attempt or raises ``ConcurrentAttemptError``.
    :param on_overlap: Behaviour while another attempt of the operator runs.
    :param sleep: Function that sleeps for a number of seconds.
    """
    if on_overlap is not OnOverlap.WAIT:
        return register

    def registered(request: RegisterAttempt) -> AttemptGrant:
        request = replace(request, waits=True)
        logged = ""

        def is_waited_for(error: Exception, _: float) -> bool:
            nonlocal logged
            if not isinstance(error, ConcurrentAttemptError):
                return False
            if error.holder != logged:
                logged = error.holder
                log.info("Operator %r of job %r: waiting for %s", request.uid, request.job_name, logged)
            return True

        return repeated(partial(register, request), itertools.repeat(_PAUSE_SECONDS), is_waited_for, sleep)

    return registered
