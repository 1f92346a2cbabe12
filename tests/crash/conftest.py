from __future__ import annotations

import pytest

from tests.shared_spark import gateway_environment


@pytest.fixture(scope="session")
def driver_jvm() -> dict[str, str]:
    """Environment with which a child process uses the test session's JVM."""
    return gateway_environment()
