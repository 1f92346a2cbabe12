"""The options of a filesystem, which may be credentials: what may be handed on, and what no message may say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_statecheck.storage.uris import redact

_SECRET_WORDS = ("key", "secret", "token", "password", "credential", "signature", "connection_string", "sas")
_SHORTEST_SECRET = 4


def secrets_in(options: Any, *, named: bool = False) -> Iterator[str]:
    """
    Return the texts in options, at any depth, whose names say that they are secret.

    :param named: Whether the name of what holds them said so already.
    """
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from secrets_in(value, named=named or any(word in str(name).lower() for word in _SECRET_WORDS))
    elif isinstance(options, list | tuple):
        for value in options:
            yield from secrets_in(value, named=named)
    elif named and isinstance(options, str) and len(options) >= _SHORTEST_SECRET:
        yield options


def conceal(text: str, options: Mapping[str, Any]) -> str:
    """Return a message without the secrets of options, and of URIs in it."""
    # The longest first: one secret may be part of another.
    for secret in sorted(secrets_in(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return redact(text)
