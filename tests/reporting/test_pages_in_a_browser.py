"""The pages in a browser: nothing is wider than the window, on a telephone and on a wide screen."""

import html as markup
import json
import re
from pathlib import Path

import numpy as np
import pytest
from ablated import made_results
from browser import BROWSER, WITHOUT, dump
from compiled_reports import made
from corpus import small_store
from etils import epath

from bert_jax.ablation import report_files
from bert_jax.aot import report_html
from bert_jax.data_pipeline.analysis.inspect import Lengths, ShownExample, ShownToken
from bert_jax.reporting import html, plots

pytestmark = pytest.mark.processes
WIDTHS = (400, 1600)
LONG = "a/folder/with/a/long/name/" * 12
# Loads each page in frames of the widths, and becomes the list of (width, width of the content).
COLLECT = """<body>{frames}<script>window.onload = () => {{
const widths = [...document.querySelectorAll("iframe")].map(frame => {{
  const page = frame.contentDocument.documentElement;
  return [page.clientWidth, page.scrollWidth];
}});
document.body.textContent = "widths " + JSON.stringify(widths);
}}</script></body>"""


def widest(path: Path) -> None:
    """A page with everything that a page can show, each part too long for a line."""
    tokens = tuple(ShownToken(LONG, True, kind, LONG) for kind in ("plain", "masked"))
    curve = {LONG[:40]: ([1.0, 2.0], [3.0, 4.0])}
    page = html.Page(LONG)
    page.facts({"text": LONG, "a name that is rather long": LONG})
    page.commands([(LONG, f"bert-jax fill --model={LONG}")])
    page.fills([html.ShownFill(LONG, LONG, LONG, [(LONG[:40], 0.5)] * 8)])
    page.sentences([LONG])
    page.table(["number"] * 12, [[123_456.0] * 12])
    page.table(["text"] * 3, [[LONG] * 3])
    page.table(["text"] * 9, [[[LONG, html.Marked(LONG, "masked"), LONG], *["land 25%"] * 8]])
    page.figures([(plots.curves(curve, ylabel="y"), LONG)] * 3)
    page.figure(plots.histogram(Lengths(np.array([0, 1, 2])), xlabel="x"), LONG)
    page.examples([ShownExample(0, 1, None, None, tokens)] * 3, [LONG] * 3)
    page.save(epath.Path(path))


def ablation(folder: Path) -> None:
    """The report of an ablation, with variants of long names."""
    store = small_store(folder / "store")
    names = {f"with a long name {number} {LONG[:40].replace('/', ' ')}": 0.1 for number in range(2)}
    found = made_results(folder, store, names, seeds=3)
    report_files.write(found, {str(store.path): store})
    (folder / "A/report.html").rename(folder / "ablation.html")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason=WITHOUT)
def test_no_page_is_wider_than_its_window(tmp_path: Path) -> None:
    """And none reports an error or asks another server for anything."""
    report_html.save(made(), str(tmp_path / "fits.html"), "--config=base")
    report_html.save(made(fits=False), str(tmp_path / "too_large.html"), f"--config={LONG}")
    widest(tmp_path / "widest.html")
    ablation(tmp_path)
    pages = sorted(tmp_path.glob("*.html"))
    frames = "".join(
        f'<iframe width={width} height=20000 style="border: 0" '
        f'srcdoc="{markup.escape(page.read_text())}"></iframe>'
        for page in pages
        for width in WIDTHS
    )
    collect = tmp_path / "all.htm"
    collect.write_text(COLLECT.format(frames=frames))
    shown, logged = dump(collect, tmp_path)
    found = re.search(r"widths (\[\[.*\]\])", shown)
    assert found, shown[-2000:] + logged[-2000:]
    widths = json.loads(found[1])
    assert "CONSOLE" not in logged
    assert not [path for path in pages if re.search(r'(src|href)="(?!#)', path.read_text())]
    assert widths == [[width, width] for _ in pages for width in WIDTHS]
