"""What may be a checkpoint directory, and how a URI is shown to people."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_DELETABLE = re.compile(r"/[0-9a-f]{32}/(chk-\d+|shared/[0-9a-f]{32}/[^/]+/[^/]+)(/|$)")


def normalise_base(base: str) -> str:
    """
    Return a checkpoint directory as an absolute URI without a slash at its end.

    :param base: A path or any fsspec URI.
    :raises InvalidConfigurationError: if it is empty, or names no directory.
    """
    text = str(base).strip()
    if not text:
        raise InvalidConfigurationError(
            "Expected checkpoint_dir to be a path or a URI such as s3://bucket/checkpoints, found nothing."
        )
    if not _SCHEME.match(text):
        return Path(text).absolute().as_uri().rstrip("/")
    scheme, _, rest = text.partition("://")
    path = rest.strip("/")
    if not path:
        raise InvalidConfigurationError(
            f"Expected checkpoint_dir to name a directory below {scheme}://, found {redact(text)!r}; the root is not ours."
        )
    return f"{scheme}:///{path}" if scheme == "file" else f"{scheme}://{path}"


def redact(uri: str) -> str:
    """Return a URI without the user and password that it may carry."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}"))


def require_deletable(uri: str) -> None:
    """
    Refuse to delete anything but one checkpoint or one snapshot of a job, so that no bug can empty a bucket.

    :raises InvalidConfigurationError: for any other URI.
    """
    if not _DELETABLE.search(uri) or "/../" in f"{uri}/":
        raise InvalidConfigurationError(
            f"Expected to delete a checkpoint or a snapshot of a job, found {redact(uri)!r}; nothing was deleted."
        )
