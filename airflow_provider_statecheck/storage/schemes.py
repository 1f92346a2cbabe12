"""
Filesystems by URI scheme, and their options.

Options may contain credentials. Messages are therefore redacted before they reach an error or a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.failures import advice
from airflow_provider_statecheck.storage.uris import redact, scheme_of

_SECRET_WORDS = (
    "key",
    "secret",
    "token",
    "passw",
    "pwd",
    "auth",
    "credential",
    "signature",
    "connection_string",
    "sas",
)
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
            yield from secrets_in(value, named=named or _is_secret_name(str(name)))
    elif isinstance(options, list | tuple):
        for value in options:
            yield from secrets_in(value, named=named)
    elif named and isinstance(options, str) and len(options) >= _SHORTEST_SECRET and options not in _CREDENTIAL_SOURCES:
        yield options


def _is_secret_name(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return any(word in plain for word in _SECRET_WORDS)


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
    :raises InvalidConfigurationError: if the scheme is unknown, its package is not installed, or the options are invalid.
    :raises StorageError: if the filesystem cannot be reached.
    """
    kind = _filesystem_class(scheme_of(uri), uri)
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


def serves(filesystem: Any, base_uri: str, uri: str) -> bool:
    """Check that a URI belongs to the filesystem of a checkpoint directory."""
    kind = type(filesystem)
    names = (kind.protocol,) if isinstance(kind.protocol, str) else kind.protocol
    return scheme_of(uri) in names and bool(_options_in(kind, uri) == _options_in(kind, base_uri))


def _options_in(kind: Any, uri: str) -> dict[str, Any]:
    # For example the host of hdfs://host/path or the account of abfs://container@account/path.
    return dict(kind._get_kwargs_from_urls(uri))


def _filesystem_class(scheme: str, uri: str) -> Any:
    import fsspec

    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise _not_installed(uri, error) from error
    except ValueError as error:
        raise InvalidConfigurationError(
            f"Expected a scheme of an fsspec filesystem, found {scheme!r} in {redact(uri)!r}; correct the URI."
        ) from error


def _not_installed(uri: str, error: Exception) -> InvalidConfigurationError:
    extra = EXTRAS.get(scheme_of(uri))
    hint = f"pip install 'airflow-provider-statecheck[{extra}]'" if extra else HINTS.get(scheme_of(uri), str(error))
    return InvalidConfigurationError(
        f"The filesystem of {redact(uri)!r} needs a package that is not installed: {hint}."
    )
