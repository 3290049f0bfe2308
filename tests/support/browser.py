"""Pages in a browser that has no network, each in a frame of some width."""

import html as markup
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
WITHOUT = f"no browser is installed ({', '.join(NAMES)})"
# Loads a page into a frame, waits until it is ready, acts on it, and becomes what that returns.
_ACT = """<meta charset="utf-8">
<body><iframe width={width} height=2000 style="border: 0" srcdoc="{page}"></iframe>
<script>
const act = {act};
window.onload = async () => {{
  const page = document.querySelector("iframe").contentDocument;
  for (let i = 0; i < 200 && !page.documentElement.dataset.ready; i++) {{
    await new Promise(resolve => setTimeout(resolve, 20));
  }}
  document.body.textContent = "found " + JSON.stringify(await act(page));
}};
</script></body>"""


def dump(page: Path, folder: Path, *, dark: bool = False) -> tuple[str, str]:
    """The document that a page becomes, and what the browser logs; dark: what the user prefers."""
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND",
            "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


def acted(page: Path, act: str, folder: Path, *, width: int = 1280, dark: bool = False) -> Any:
    """What a function of JavaScript returns of a page's document; the page must log nothing."""
    frame = folder / "frame.htm"
    text = markup.escape(page.read_text("utf-8"))
    frame.write_text(_ACT.format(width=width, page=text, act=act), "utf-8")
    shown, logged = dump(frame, folder, dark=dark)
    found = re.search(r"<body>found (.*)</body>", shown, re.DOTALL)
    assert found, shown[-2000:] + logged[-2000:]
    assert "CONSOLE" not in logged, logged
    return json.loads(markup.unescape(found[1]))
