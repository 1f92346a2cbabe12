"""Which filesystem serves a scheme, and which extra brings it."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.failures import advice
from airflow_provider_statecheck.storage.options import conceal, harmless
from airflow_provider_statecheck.storage.uris import redact, scheme_of

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
