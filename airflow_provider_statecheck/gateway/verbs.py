"""
Calls of the API, derived from the interfaces of the coordinator.

The methods of an interface are the table of its calls: a call has the name, the parameters, the reply and the description
of its method. Calls in :data:`_READS` read rows by a path, all others send a message to the path of their name. The HTTP
clients and the routes of the server are made from these tables, so a new call is one method of the interface and one of the
coordinator.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, make_dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Protocol, get_type_hints
from urllib.parse import quote, urlencode

from airflow_provider_statecheck.checkpoint.codec import encode, read_reply
from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.records import RowsVersion

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
    """Name of the method of the interface, and of the object behind the API."""
    path: str
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
        """
        Make the call over HTTP.

        :param arguments: Arguments of the method.
        """
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


def verbs_of(interface: type, folder: str) -> dict[str, Verb]:
    """
    Return the calls of an interface, by name.

    :param folder: Folder of the paths of the calls that send a message.
    """
    methods = {name: each for name, each in vars(interface).items() if inspect.isfunction(each) and name[0] != "_"}
    return {name: _verb(method, folder) for name, method in methods.items()}


def _verb(method: Any, folder: str) -> Verb:
    name, hints, signature = method.__name__, get_type_hints(method), inspect.signature(method)
    return Verb(
        name=name,
        signature=signature.replace(parameters=tuple(signature.parameters.values())[1:]),
        path=_READS.get(name) or f"{folder}/{name.replace('_', '-')}",
        reply=hints.pop("return"),
        parameters=hints,
        description=(inspect.getdoc(method) or "").replace("``None``", "null"),
    )


COORDINATOR = verbs_of(CheckpointCoordinatorGateway, "attempts")
"""Calls of a stage; the field ``attempt`` of a message names the attempt, which the token must be bound to."""
