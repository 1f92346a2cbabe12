"""
Calls of the API, derived from the interfaces of the coordinator; paths and errors.

The methods of an interface are the table of its calls: a call has the name, the parameters, the reply and the description
of its method. Calls in :data:`_READS` read rows by a path, all others send a message to the path of their name. The HTTP
clients and the routes of the server are made from these tables, so a new call is one method of the interface and one of the
coordinator.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, make_dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Protocol, get_type_hints
from urllib.parse import quote, urlencode

from airflow_provider_statecheck.checkpoint.codec import encode, read_reply
from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.records import RowsVersion
from airflow_provider_statecheck.exceptions import CoordinatorError, StateCheckError

_READS = {
    "jobs": "jobs",
    "describe": "jobs/{job_id}",
    "checkpoint": "jobs/{job_id}/checkpoints/{checkpoint_id}",
    "checkpoints": "jobs/{job_id}/checkpoints",
    "latest": "jobs/{job_id}/operators/{operator_id}/latest",
    "latest_checkpoints": "jobs/{job_id}/latest",
}
"""Paths of the calls that read, by method, with the names of parameters in braces; the others are in the query."""


class Client(Protocol):
    """Client of the API, such as an ``HttpClient``."""

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        """Send a message and return the reply."""
        ...

    def get(self, path: str, token: str | None = None) -> Any:
        """Return the reply to a query."""
        ...


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

    @cached_property
    def message(self) -> Any:
        """Class of the message: that of the only parameter, or one whose fields are the parameters."""
        if self._takes_message:
            return next(iter(self.parameters.values()))
        name = "".join(word.title() for word in self.name.split("_"))
        return make_dataclass(name, self.parameters.items(), frozen=True, kw_only=True)

    @cached_property
    def _takes_message(self) -> bool:
        return [is_dataclass(kind) for kind in self.parameters.values()] == [True]

    def send(self, client: Client, token: str, *arguments: Any, **named: Any) -> Any:
        """Make the call over HTTP."""
        given = self.signature.bind(*arguments, **named).arguments
        if self.is_read:
            return self.decoded(client.get(self.address(**given), token))
        message = next(iter(given.values())) if self._takes_message else given
        return self.decoded(client.post(self.path, encode(message), token))

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
        return method(message) if self._takes_message else method(**vars(message))


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
    methods = {name: each for name, each in vars(interface).items() if inspect.isfunction(each) and name[0] != "_"}
    return {name: _verb(method, folder, service or folder) for name, method in methods.items()}


def _verb(method: Any, folder: str, service: str) -> Verb:
    name, hints, signature = method.__name__, get_type_hints(method), inspect.signature(method)
    return Verb(
        name=name,
        service=service,
        signature=signature.replace(parameters=tuple(signature.parameters.values())[1:]),
        path=_READS.get(name) or f"{folder}/{name.replace('_', '-')}",
        reply=hints.pop("return"),
        parameters=hints,
        description=(inspect.getdoc(method) or "").replace("``None``", "null"),
    )


COORDINATOR = verbs_of(CheckpointCoordinatorGateway, "attempts", "coordinator")
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
    """Encode an error as JSON, without attributes that are not plain values."""
    attributes = {name: value for name, value in vars(error).items() if _is_plain(value)}
    return {"code": error.code, "message": str(error), "attributes": attributes}


def decode_error(data: dict[str, Any]) -> StateCheckError:
    """Decode an error from JSON; an unknown code results in a ``CoordinatorError``."""
    kind = _CLASSES.get(str(data["code"]), CoordinatorError)
    message, attributes = str(data["message"]), _attributes(data)
    try:
        return kind(message, **attributes)
    except TypeError:  # the class requires an attribute that was not sent
        return CoordinatorError(message, **attributes)


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
