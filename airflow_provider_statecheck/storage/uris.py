"""
URIs: schemes, valid and allowed directories, deletable paths, display, and relative URIs.

URIs are never percent-encoded or decoded, because neither Spark nor fsspec does it. A relative URI remains valid if the
metadata moves with its directory.

Options of filesystems may contain credentials. Messages are therefore redacted before they reach an error or a log.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import (
    is_in_job,
    savepoint_directory_of,
)
from airflow_provider_statecheck.checkpoint.masking import (
    is_secret_name,
    redact as redact,
    require_no_credentials,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.failures import advice

log = logging.getLogger(__name__)

LOCAL_SCHEMES = ("file", "local")
_OF_HADOOP = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfss", "hdfs": "hdfs"}
"""Schemes of shared stores, and their names in Hadoop."""
URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
"""An absolute URI: its scheme, and the rest."""
_ALMOST_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LONGEST_NAME = 255
"""Longest name of a file in bytes on common local filesystems."""
_GLOB = re.compile(r"[*?\[\]{}]")
_IN_A_JOB = r"(?:chk-\d+|shared/[0-9a-f]{32}/[^/]+/[^/]+|taskowned/[^/]+/[^/]+|mail/[0-9a-f]{32}/\d+)"
_OF_A_JOB = rf"[0-9a-f]{{32}}/(?:{_IN_A_JOB}|_orphans)"
_DELETABLE = rf"(?:{_OF_A_JOB}|savepoint-[0-9a-f]{{6}}-[0-9a-f]{{12}})(?:/|$)"
_DELETABLE_HERE = re.compile(_DELETABLE)
_SAVEPOINT_BELOW = re.compile(r"/savepoint-[0-9a-f]{6}-[0-9a-f]{12}(?:/|$)")
_OF_THE_ONLY_JOB = re.compile(rf"{_IN_A_JOB}(?:/|$)")
_DELETABLE_ELSEWHERE = re.compile(f"/{_DELETABLE}")


def normalise_base(base: Any, name: str = "checkpoint_dir") -> str:
    """
    Return a directory as an absolute URI without a trailing slash.

    :param base: A path or any fsspec URI.
    :param name: Name of the setting for error messages.
    :raises InvalidConfigurationError: if the directory is empty, relative or a root, or contains glob or null
        characters or too long names.
    """
    text = os.fspath(base).strip() if isinstance(base, str | os.PathLike) else base
    if not isinstance(text, str) or not text:
        raise _invalid(name, "a path or a URI such as s3://bucket/checkpoints", base)
    if _GLOB.search(text):
        raise _invalid(name, "free of the characters *?[]{}, which filesystems and Spark expand", text)
    if "\0" in text:
        raise _invalid(name, "free of null characters, which no filesystem accepts", text)
    uri = URI.fullmatch(text)
    if uri is not None:
        return _normalise_uri(uri.group(1).lower(), uri.group(2), text, name)
    if _ALMOST_URI.match(text):
        raise _invalid(name, "a URI with :// after its scheme, or a path that begins with / or ./", text)
    return _normalise_path(Path(text).expanduser(), text, name)


def path_text(path: Any) -> Any:
    """Return the text of a path object, and any other value as it is, which :func:`normalise_base` checks later."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def normalise_pointer(pointer: Any) -> str:
    """
    Return a pointer to a savepoint as a normalised absolute URI.

    Pointers are stored in rows and shown in logs and on pages, so they must not contain credentials.

    :param pointer: A path or any fsspec URI.
    :raises InvalidConfigurationError: as :func:`normalise_base`, and for a URI with credentials.
    """
    uri = normalise_base(pointer, "the URI of the savepoint")
    require_no_credentials("the URI of the savepoint", uri)
    return uri


def normalise_savepoint_dir(directory: Any) -> str:
    """
    Return the parent directory of savepoints as a normalised absolute URI.

    :param directory: A path or any fsspec URI.
    :raises InvalidConfigurationError: as :func:`normalise_pointer`, and for a directory in a checkpoint, a snapshot or
        a savepoint.
    """
    uri = normalise_pointer(directory)
    if is_in_job(uri) or savepoint_directory_of(uri) is not None:
        raise InvalidConfigurationError(
            "Expected a directory for savepoints that is in no checkpoint and no other savepoint, with which they "
            f"would be deleted, found {uri!r}; name another one."
        )
    return uri


def scheme_of(uri: str) -> str:
    """
    Return the scheme of an absolute URI.

    :raises InvalidConfigurationError: if the URI has no scheme.
    """
    match = URI.fullmatch(uri)
    if match is None:
        raise InvalidConfigurationError(f"Expected an absolute URI such as file:///data/x, found {redact(uri)!r}.")
    return match.group(1).lower()


def is_local(uri: str) -> bool:
    """Return whether a URI is on a local filesystem."""
    return scheme_of(uri) in LOCAL_SCHEMES


def hadoop_uri(uri: str) -> str | None:
    """Return a URI of a shared store as Hadoop's filesystems know it, ``None`` if none of them may know it."""
    scheme, rest = _OF_HADOOP.get(scheme_of(uri)), uri.partition("://")[2]
    # Hadoop takes the account of Azure from the URI only.
    has_account = scheme not in ("abfs", "abfss") or "@" in rest.partition("/")[0]
    return f"{scheme}://{rest}" if scheme is not None and has_account else None


def deletable_root(uri: str, base_uri: str) -> str:
    """
    Return the directory of the job or savepoint that a checkpoint, a snapshot or a file of them is in.

    The requirement protects buckets from accidental deletion.

    :param base_uri: The checkpoint directory. URIs in other directories are accepted unless they contain this one.
    :raises InvalidConfigurationError: if the URI is anything else.
    """
    root = _root_of(uri.rstrip("/"), base_uri) if _is_plain(uri) else None
    if root is None:
        raise InvalidConfigurationError(
            f"Expected to delete a checkpoint or a snapshot of a job, found {redact(uri)!r}; nothing was deleted."
        )
    return root


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
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in absolute.parts):
        # A directory that cannot exist could not be deleted either, which would keep its job from its removal.
        raise _invalid(name, f"made of names of up to {_LONGEST_NAME} bytes", text)
    return f"file:///{str(absolute).lstrip('/')}"


def _invalid(name: str, expected: str, found: Any) -> InvalidConfigurationError:
    shown = repr(redact(found)) if isinstance(found, str) and found else "nothing" if not found else repr(found)
    return InvalidConfigurationError(f"Expected {name} to be {expected}; found {shown}.")


def _is_plain(uri: str) -> bool:
    # Filesystems resolve dots and expand globs when they delete.
    parts = uri.rstrip("/").partition("://")[2].lstrip("/").split("/")
    return not _GLOB.search(uri) and not {"", ".", ".."} & set(parts)


def _root_of(uri: str, base_uri: str) -> str | None:
    if uri.startswith(f"{base_uri}/"):
        below = uri.removeprefix(f"{base_uri}/")
        if _DELETABLE_HERE.match(below):
            return f"{base_uri}/{below.partition('/')[0]}"
        # Savepoints may be in a subdirectory, and a job may have no directory of its own.
        savepoint = _SAVEPOINT_BELOW.search(below)
        if savepoint is not None:
            return f"{base_uri}/{below[: savepoint.end()].rstrip('/')}"
        return base_uri if _OF_THE_ONLY_JOB.match(below) else None
    elsewhere = None if f"{base_uri}/".startswith(f"{uri}/") else _DELETABLE_ELSEWHERE.search(uri)
    if elsewhere is None:
        return None
    begin = elsewhere.start() + 1
    return uri[:begin] + uri[begin:].partition("/")[0]


OF_JOB = "job:"
"""Prefix of a URI relative to the directory of the job."""
OF_DIRECTORY = "dir:"
"""Prefix of a URI relative to the directory of the metadata file."""
_SPECIAL_NAMES = frozenset(("", ".", ".."))


class RelativeUris:
    """
    URIs in the form in which a metadata file names them.

    :param metadata_uri: URI of the metadata file.
    :param prefix: Prefix that marks the shortened URIs of files below its directory; ``None`` to keep all URIs
        absolute.
    """

    def __init__(self, metadata_uri: str, prefix: str | None = None) -> None:
        directory = metadata_uri.rstrip("/").rpartition("/")[0]
        # The directory of a checkpoint is in that of its job.
        self._bases = {OF_DIRECTORY: f"{directory}/", OF_JOB: f"{directory.rpartition('/')[0]}/"}
        self._prefix = prefix
        self._base = None if prefix is None else self._bases[prefix]

    def shorten(self, uri: str) -> str:
        """
        Return the written form of a URI.

        :raises InvalidConfigurationError: if the URI is not absolute and would be read as a shortened one.
        """
        if self._base is not None and self.covers(uri):
            return f"{self._prefix}{uri[len(self._base) :]}"
        if self._base_of(uri) is not None:
            raise InvalidConfigurationError(f"Expected an absolute URI such as file:///data/x, found {redact(uri)!r}.")
        return uri

    def covers(self, uri: str) -> bool:
        """Return whether a URI is below the directory."""
        return self._base is not None and uri.startswith(self._base) and _is_plain_path(uri[len(self._base) :])

    def lengthen(self, written: str) -> str:
        """
        Return the absolute URI of a written one, with any prefix.

        :raises ValueError: if a relative URI leads out of its directory.
        """
        base = self._base_of(written)
        if base is None:
            return written
        if not _is_plain_path(written[4:]):
            raise ValueError(f"{written!r} leads out of its directory")
        return f"{base}{written[4:]}"

    def _base_of(self, written: str) -> str | None:
        # A URI whose scheme equals a prefix is absolute.
        return None if written.startswith("//", 4) else self._bases.get(written[:4])


def _is_plain_path(path: str) -> bool:
    # Many files share a directory, which is checked once.
    directory, slash, name = path.rpartition("/")
    return name not in _SPECIAL_NAMES and (not slash or _is_plain_directory(directory))


@lru_cache(maxsize=256)
def _is_plain_directory(path: str) -> bool:
    return _SPECIAL_NAMES.isdisjoint(path.split("/"))


# gcsfs accepts these names of credential sources as a token. As secrets, they would be masked in every log.
_CREDENTIAL_SOURCES = frozenset({"anon", "cloud", "browser", "cache", "google_default"})
_SHORTEST_SECRET = 4


def secrets_in(options: Any, *, named: bool = False) -> Iterator[str]:
    """
    Return the texts of options with secret names, at any depth.

    :param named: Treat all texts as secret, as below an option with a secret name.
    """
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from secrets_in(value, named=named or is_secret_name(str(name)))
    elif isinstance(options, list | tuple):
        for value in options:
            yield from secrets_in(value, named=named)
    elif named and isinstance(options, str) and len(options) >= _SHORTEST_SECRET and options not in _CREDENTIAL_SOURCES:
        yield options


def conceal(text: str, options: Mapping[str, Any]) -> str:
    """Mask the secrets of the options, and the credentials of URIs, in a message."""
    # Longest first, because one secret may be part of another.
    for secret in sorted(secrets_in(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return redact(text)


def harmless(error: Exception, options: Mapping[str, Any]) -> Exception | None:
    """Return an error that may be printed as a cause, or ``None`` if its text contains a secret."""
    return error if conceal(str(error), options) == str(error) else None


EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}

HINTS = {
    "hdfs": "libhdfs and Java of a Hadoop client, found by HADOOP_HOME, CLASSPATH and ARROW_LIBHDFS_DIR; or use webhdfs://",
    "webhdfs": "pip install requests",
}
"""Requirements of schemes that no extra installs."""


def open_filesystem(uri: str, options: dict[str, Any]) -> Any:
    """
    Return the fsspec filesystem of a URI.

    :param options: Options of the filesystem; messages never contain their secrets.
    :raises InvalidConfigurationError: if the scheme is unknown, its package is not installed, or the options are
        invalid.
    :raises StorageError: if the filesystem cannot be reached.
    """
    require_known_filesystem(uri)
    try:
        kind = _filesystem_class(scheme_of(uri))
    except (ImportError, ValueError) as error:
        raise _not_installed(uri, error) from error
    try:
        # A cached listing would hide the files of other writers.
        return kind(**{**_options_in(kind, uri), **options, "use_listings_cache": False})
    except ImportError as error:
        raise _not_installed(uri, error) from error
    except (TypeError, ValueError) as error:
        raise InvalidConfigurationError(
            f"The filesystem of {redact(uri)!r} rejects its options: {conceal(str(error), options)}"
        ) from harmless(error, options)
    except Exception as error:
        if str(error).startswith("Unable to load lib"):  # pyarrow, of libhdfs or libjvm
            raise _not_installed(uri, error) from error
        reason = conceal(str(error), options).rstrip(".")
        raise StorageError(
            f"The filesystem of {redact(uri)!r} cannot be opened: {reason}.{advice(error)}"
        ) from harmless(error, options)


def _filesystem_class(scheme: str) -> Any:
    """
    Return the fsspec filesystem of a scheme: that of the store's own package, else one that PyArrow serves.

    :raises ImportError: if there is neither.
    :raises ValueError: if there is neither, and the package would have declared the scheme.
    """
    import fsspec

    try:
        return fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError):
        kind = arrow_store(scheme)
        if kind is None:
            raise
        return kind


@lru_cache
def arrow_store(scheme: str) -> Any:
    """Return the filesystem that PyArrow serves for a scheme, ``None`` if it has none; the first call logs it."""
    from airflow_provider_statecheck.storage.arrow_stores import STORES

    kind = STORES.get(scheme)
    if kind is not None:
        log.info(
            "PyArrow serves %s://, because %s is not installed. It has no conditional create, so each write looks for "
            "the file first.",
            scheme,
            kind.package,
        )
    return kind


def serves(filesystem: Any, base_uri: str, uri: str) -> bool:
    """Check that a URI belongs to the filesystem of a checkpoint directory."""
    kind = type(filesystem)
    names = (kind.protocol,) if isinstance(kind.protocol, str) else kind.protocol
    return scheme_of(uri) in names and bool(_options_in(kind, uri) == _options_in(kind, base_uri))


def _options_in(kind: Any, uri: str) -> dict[str, Any]:
    # For example the host of hdfs://host/path or the account of abfs://container@account/path.
    return dict(kind._get_kwargs_from_urls(uri))


def require_known_filesystem(uri: str) -> None:
    """
    Require that there is a filesystem for a URI, without importing its package.

    :raises InvalidConfigurationError: if the scheme is unknown.
    """
    if not is_filesystem_known(uri):
        raise InvalidConfigurationError(
            f"Expected a scheme of an fsspec filesystem, found {scheme_of(uri)!r} in {redact(uri)!r}; correct the URI."
        )


def is_filesystem_known(uri: str) -> bool:
    """Return whether there is a filesystem for a URI, installed or not."""
    import fsspec

    # A package may declare some of its schemes only when it is installed.
    scheme = scheme_of(uri)
    return scheme in EXTRAS or scheme in fsspec.registry or scheme in fsspec.available_protocols()


def _not_installed(uri: str, error: Exception) -> InvalidConfigurationError:
    extra = EXTRAS.get(scheme_of(uri))
    hint = f"pip install 'airflow-provider-statecheck[{extra}]'" if extra else HINTS.get(scheme_of(uri), str(error))
    return InvalidConfigurationError(
        f"The filesystem of {redact(uri)!r} needs a package that is not installed: {hint}."
    )
