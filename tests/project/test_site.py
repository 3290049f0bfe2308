"""`make docs`: README and docs/ are a site that builds without a warning and works offline."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not importlib.util.find_spec("sphinx"):
        pytest.skip("needs the extra [docs]")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*command, f"--doctree-dir={out.parent / 'doctrees'}", "docs", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_in_the_site_and_its_search(site: Path) -> None:
    assert [page for page in PAGES if not (site / page.with_suffix(".html")).exists()] == []
    found = set(re.findall(r'"([\w/]+)"', (site / "searchindex.js").read_text("utf-8")))
    assert {str(page.with_suffix("")) for page in PAGES} <= found


def test_the_first_page_begins_with_the_readme(site: Path) -> None:
    page = (site / "index.html").read_text("utf-8")
    assert re.findall(r"<h1>(.*?)<", page)[:1] == ["bert-jax"]
    assert 'href="training.html"' in page


def test_a_link_to_a_file_that_is_no_page_leads_to_the_repository(site: Path) -> None:
    page = (site / "index.html").read_text("utf-8")
    assert "https://github.com/bert-jax/bert-jax/blob/main/CONTRIBUTING.md" in page


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """A reader's own pages in _downloads are what they were before."""
    for file in [*site.glob("*.html"), *site.glob("ablations/*.html")]:
        text = file.read_text("utf-8")
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="([^"]*)"', text)
        assert loaded
        assert not [target for target in loaded if re.match(r"(\w+:)?//", target)], file.name
    for file in site.rglob("*.css"):
        text = file.read_text("utf-8")
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), file.name
