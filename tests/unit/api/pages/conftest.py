from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.api.pages.site import Site, open_site


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with open_site(monkeypatch) as site:
        yield site
