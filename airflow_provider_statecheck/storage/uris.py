"""
Rules of URIs: valid directories, deletable paths, display, and relative URIs in metadata.

URIs are never percent-encoded or decoded, because neither Spark nor fsspec does it. A relative URI remains valid if the
metadata moves with its directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

LOCAL_SCHEMES = ("file", "local")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ALMOST_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_GLOB = re.compile(r"[*?\[\]{}]")
_OF_A_JOB = r"[0-9a-f]{32}/(?:chk-\d+|shared/[0-9a-f]{32}/[^/]+/[^/]+|handles/[0-9a-f]{32}/[^/]+|taskowned/[^/]+/[^/]+|_orphans)"
_DELETABLE = rf"(?:{_OF_A_JOB}|savepoint-[0-9a-f]{{6}}-[0-9a-f]{{12}})(?:/|$)"
_DELETABLE_HERE = re.compile(_DELETABLE)
_SAVEPOINT_BELOW = re.compile(r"/savepoint-[0-9a-f]{6}-[0-9a-f]{12}(?:/|$)")
_OF_THE_ONLY_JOB = re.compile(r"(?:chk-\d+|shared/[0-9a-f]{32}/[^/]+/[^/]+|taskowned/[^/]+/[^/]+)(?:/|$)")
_DELETABLE_ELSEWHERE = re.compile(f"/{_DELETABLE}")

# The second alternative is a password with an unescaped slash, as in S3 secret keys; a port does not match it.
_SIGNATURE = re.compile(
    r"(?i)([?&;](?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|access_token|delegation|token)=)"
    r"[^&;\s'\"]+"
)

_USER_INFO = re.compile(r"://(?:[^/\s]*|[^/@:\s]+:(?!\d+/)\S*)@")


def normalise_base(base: Any, name: str = "checkpoint_dir") -> str:
    """
    Return a directory as an absolute URI without a trailing slash.

    :param base: A path or any fsspec URI.
    :param name: Name of the setting for error messages.
    :raises InvalidConfigurationError: if the directory is empty, relative or a root, or contains glob characters.
    """
    text = os.fspath(base).strip() if isinstance(base, str | os.PathLike) else base
    if not isinstance(text, str) or not text:
        raise _invalid(name, "a path or a URI such as s3://bucket/checkpoints", base)
    if _GLOB.search(text):
        raise _invalid(name, "free of the characters *?[]{}, which filesystems and Spark expand", text)
    uri = _URI.fullmatch(text)
    if uri is not None:
        return _normalise_uri(uri.group(1).lower(), uri.group(2), text, name)
    if _ALMOST_URI.match(text):
        raise _invalid(name, "a URI with :// after its scheme, or a path that begins with / or ./", text)
    return _normalise_path(Path(text).expanduser(), text, name)


def normalise_pointer(pointer: Any) -> str:
    """
    Return a pointer to a savepoint as a normalised absolute URI.

    Pointers are stored in rows and shown in logs and on pages, so they must not contain credentials.

    :param pointer: A path or any fsspec URI.
    :raises InvalidConfigurationError: as :func:`normalise_base`, and for a URI with credentials.
    """
    uri = normalise_base(pointer, "the URI of the savepoint")
    if redact(uri) != uri:
        raise InvalidConfigurationError(
            f"Expected the URI of a savepoint without credentials, found {redact(uri)!r}; set storage_conn_id instead."
        )
    return uri


def scheme_of(uri: str) -> str:
    """
    Return the scheme of an absolute URI.

    :raises InvalidConfigurationError: if the URI has no scheme.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise InvalidConfigurationError(f"Expected an absolute URI such as file:///data/x, found {redact(uri)!r}.")
    return match.group(1).lower()


def redact(text: str) -> str:
    """Return a text with the user names, passwords and signatures of all URIs replaced by asterisks."""
    return _SIGNATURE.sub(r"\1***", _USER_INFO.sub("://***@", text))


def require_deletable(uri: str, base_uri: str) -> None:
    """
    Require that a URI is part of a checkpoint or a snapshot, to protect buckets from accidental deletion.

    :param base_uri: The checkpoint directory. URIs in other directories are accepted unless they contain this one.
    :raises InvalidConfigurationError: if the URI is anything else.
    """
    if not _is_plain(uri) or not _is_checkpoint_or_snapshot(uri.rstrip("/"), base_uri):
        raise InvalidConfigurationError(
            f"Expected to delete a checkpoint or a snapshot of a job, found {redact(uri)!r}; nothing was deleted."
        )


def _normalise_uri(scheme: str, rest: str, text: str, name: str) -> str:
    if scheme in LOCAL_SCHEMES:
        if not rest.startswith("/"):
            raise _invalid(name, "absolute, with three slashes as in file:///data/checkpoints", text)
        return _normalise_path(Path(rest), text, name)
    if not rest.strip("/"):
        raise _invalid(name, f"a directory below {scheme}://, because the root is shared with others", text)
    if {"", ".", ".."} & set(rest.strip("/").split("/")):
        raise _invalid(name, "free of empty segments, '.' and '..'", text)
    # Leading slashes are significant: hdfs:///data has an empty host.
    return f"{scheme}://{rest.rstrip('/')}"


def _normalise_path(path: Path, text: str, name: str) -> str:
    absolute = path.resolve() if ".." in path.parts else path.absolute()
    if absolute == Path(absolute.anchor):
        raise _invalid(name, "a directory below the root, because the root is shared with others", text)
    return f"file:///{str(absolute).lstrip('/')}"


def _invalid(name: str, expected: str, found: Any) -> InvalidConfigurationError:
    shown = repr(redact(found)) if isinstance(found, str) and found else "nothing" if not found else repr(found)
    return InvalidConfigurationError(f"Expected {name} to be {expected}; found {shown}.")


def _is_plain(uri: str) -> bool:
    # Filesystems resolve dots and expand globs when they delete.
    parts = uri.rstrip("/").partition("://")[2].lstrip("/").split("/")
    return not _GLOB.search(uri) and not {"", ".", ".."} & set(parts)


def _is_checkpoint_or_snapshot(uri: str, base_uri: str) -> bool:
    if uri.startswith(f"{base_uri}/"):
        below = uri.removeprefix(f"{base_uri}/")
        # Savepoints may be in a subdirectory, and a job may have no directory of its own.
        return bool(_DELETABLE_HERE.match(below) or _SAVEPOINT_BELOW.search(below) or _OF_THE_ONLY_JOB.match(below))
    return not f"{base_uri}/".startswith(f"{uri}/") and bool(_DELETABLE_ELSEWHERE.search(uri))


OF_JOB = "job:"
"""Prefix of a URI relative to the directory of the job."""
OF_DIRECTORY = "dir:"
"""Prefix of a URI relative to the directory of the metadata file."""
_SPECIAL_NAMES = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True)
class RelativeUris:
    """
    Shortens URIs below a directory.

    :param prefix: Prefix that marks a shortened URI.
    :param base: The directory; ``None`` to keep all URIs absolute.
    """

    prefix: str
    base: str | None

    def shorten(self, uri: str) -> str:
        """
        Return the written form of a URI.

        :raises InvalidConfigurationError: if the URI is not absolute and would be read as a shortened one.
        """
        if self.covers(uri):
            return f"{self.prefix}{uri.removeprefix(f'{self.base}/')}"
        if is_relative(uri):
            raise InvalidConfigurationError(f"Expected an absolute URI such as file:///data/x, found {redact(uri)!r}.")
        return uri

    def covers(self, uri: str) -> bool:
        """Return whether a URI is below the directory."""
        return (
            self.base is not None
            and uri.startswith(f"{self.base}/")
            and _is_plain_path(uri.removeprefix(f"{self.base}/"))
        )

    def cover(self, uris: Iterable[str]) -> bool:
        """Return whether all URIs are below the directory."""
        return all(map(self.covers, uris))


def lengthen(written: str, metadata_uri: str) -> str:
    """
    Return the absolute URI of a written one.

    :param metadata_uri: URI of the metadata file that contains it.
    :raises ValueError: if a relative URI leads out of its directory.
    """
    if not is_relative(written):
        return written
    prefix, path = written[:4], written[4:]
    if not _is_plain_path(path):
        raise ValueError(f"{written!r} leads out of its directory")
    base = directory_of(metadata_uri) if prefix == OF_DIRECTORY else job_directory_of(metadata_uri)
    return f"{base}/{path}"


def is_relative(written: str) -> bool:
    """Return whether a written URI is relative. A URI whose scheme equals a prefix is absolute."""
    return written.startswith((OF_JOB, OF_DIRECTORY)) and not written[4:].startswith("//")


def directory_of(metadata_uri: str) -> str:
    """Return the directory of a metadata file."""
    return metadata_uri.rstrip("/").rpartition("/")[0]


def job_directory_of(metadata_uri: str) -> str:
    """Return the directory of the job whose checkpoint a metadata file describes."""
    return directory_of(directory_of(metadata_uri))


def _is_plain_path(path: str) -> bool:
    # Many files share a directory, which is checked once.
    directory, slash, name = path.rpartition("/")
    return name not in _SPECIAL_NAMES and (not slash or _is_plain_directory(directory))


@lru_cache(maxsize=256)
def _is_plain_directory(path: str) -> bool:
    return _SPECIAL_NAMES.isdisjoint(path.split("/"))
