"""Filesystems by URI scheme, and their options."""

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
# Ways to find a credential, which gcsfs takes in place of one: as a secret they would be blotted out of every log.
_WAYS = frozenset({"anon", "cloud", "browser", "cache", "google_default"})
_SHORTEST_SECRET = 4


def secrets_in(options: Any, *, named: bool = False) -> Iterator[str]:
    """
    Return the texts in options, at any depth, whose names say that they are secret.

    :param named: Whether the name of what holds them said so already.
    """
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from secrets_in(value, named=named or _says_secret(str(name)))
    elif isinstance(options, list | tuple):
        for value in options:
            yield from secrets_in(value, named=named)
    elif named and isinstance(options, str) and len(options) >= _SHORTEST_SECRET and options not in _WAYS:
        yield options


def _says_secret(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return any(word in plain for word in _SECRET_WORDS)


def conceal(text: str, options: Mapping[str, Any]) -> str:
    """Return a message without the secrets of options, and of URIs in it."""
    # The longest first: one secret may be part of another.
    for secret in sorted(secrets_in(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return redact(text)


def harmless(error: Exception, options: Mapping[str, Any]) -> Exception | None:
    """Return an error as the cause of another, which is printed as it is; ``None`` if its text holds a secret."""
    return error if conceal(str(error), options) == str(error) else None


EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}

HINTS = {
    "hdfs": "libhdfs and Java of a Hadoop client, found by HADOOP_HOME, CLASSPATH and ARROW_LIBHDFS_DIR; or use webhdfs://",
    "webhdfs": "pip install requests",
}
"""What else must be there, for schemes that no extra brings."""


def open_filesystem(uri: str, options: dict[str, Any]) -> Any:
    """
    Return the fsspec filesystem of a URI.

    :param options: Options of the filesystem; they are never shown, because they may be credentials.
    :raises InvalidConfigurationError: for an unknown scheme, one whose package is not installed, or unfit options.
    :raises StorageError: if the filesystem cannot be reached.
    """
    kind = _filesystem_class(scheme_of(uri), uri)
    try:
        # Listings must not be remembered: other writers' files would stay invisible.
        return kind(**{**_options_in(kind, uri), **options, "use_listings_cache": False})
    except ImportError as error:
        raise _not_installed(uri, error) from error
    except (TypeError, ValueError) as error:
        raise InvalidConfigurationError(
            f"The filesystem of {redact(uri)!r} does not accept its options: {conceal(str(error), options)}"
        ) from harmless(error, options)
    except Exception as error:
        if str(error).startswith("Unable to load lib"):  # pyarrow, of libhdfs or libjvm
            raise _not_installed(uri, error) from error
        said = conceal(str(error), options).rstrip(".")
        raise StorageError(f"The filesystem of {redact(uri)!r} cannot be opened: {said}.{advice(error)}") from harmless(
            error, options
        )


def serves(filesystem: Any, base_uri: str, uri: str) -> bool:
    """Tell whether the filesystem of a checkpoint directory is the one of another URI too."""
    kind = type(filesystem)
    names = (kind.protocol,) if isinstance(kind.protocol, str) else kind.protocol
    return scheme_of(uri) in names and bool(_options_in(kind, uri) == _options_in(kind, base_uri))


def _options_in(kind: Any, uri: str) -> dict[str, Any]:
    # The host of hdfs://host/path, the account of abfs://container@account/path; nothing for most.
    return dict(kind._get_kwargs_from_urls(uri))


def _filesystem_class(scheme: str, uri: str) -> Any:
    import fsspec

    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise _not_installed(uri, error) from error
    except ValueError as error:
        raise InvalidConfigurationError(
            f"Expected a scheme that fsspec knows, found {scheme!r} in {redact(uri)!r}."
        ) from error


def _not_installed(uri: str, error: Exception) -> InvalidConfigurationError:
    extra = EXTRAS.get(scheme_of(uri))
    hint = f"pip install 'airflow-provider-statecheck[{extra}]'" if extra else HINTS.get(scheme_of(uri), str(error))
    return InvalidConfigurationError(
        f"The filesystem of {redact(uri)!r} needs a package that is not installed: {hint}."
    )
