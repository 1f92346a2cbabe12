"""The site can be built, whole, without a warning and without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT
from tests.docs.test_troubleshooting import ERRORS

_FOREIGN = re.compile(r'(?:src|<link[^>]* href)="(?:https?:)?//[^"]*"')


def build(folder: Path, builder: str) -> Path:
    """Build the documentation as ``make docs`` does, and return the folder of the site."""
    arguments = ["-b", builder, "--fail-on-warning", "--keep-going", "--quiet", "-E", "-d", str(folder / "trees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *arguments, "-c", "scripts/docs", "docs", str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("site"), "html")


def test_the_documentation_has_no_unknown_reference(tmp_path: Path):
    build(tmp_path, "dummy")


@pytest.mark.soak
def test_every_page_is_in_the_site_and_in_its_navigation(site: Path):
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in PAGES if ROOT / "docs" in page.parents}
    start = (site / "index.html").read_text()

    assert {page.relative_to(site) for page in site.rglob("*.html")} >= pages
    assert [str(page) for page in pages if f'href="{page}"' not in start and page != Path("index.html")] == []


@pytest.mark.soak
def test_the_site_loads_nothing_from_elsewhere(site: Path):
    found = {str(page.relative_to(site)): _FOREIGN.findall(page.read_text()) for page in site.rglob("*.html")}

    assert {page: links for page, links in found.items() if links} == {}


@pytest.mark.soak
def test_every_error_is_in_the_reference(site: Path):
    page = (site / "reference" / "api.html").read_text()

    assert [kind for kind in ERRORS.values() if f'id="{kind.__module__}.{kind.__name__}"' not in page] == []
