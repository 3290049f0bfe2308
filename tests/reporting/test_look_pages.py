"""The pages of `bert-jax look`: their size and their errors; in a browser, what they show."""

import base64
import zlib
from pathlib import Path

import numpy as np
import pytest
from browser import BROWSER, WITHOUT, acted

from bert_jax.reporting.attention_page import pack, write_attention
from bert_jax.reporting.neighbours_page import write_neighbours
from bert_jax.reporting.senses_page import Shown, write_senses

LARGE = (24, 16, 128, 128)
HOSTILE = "</script><script>document.title='injected'</script><img src=x onerror=alert(1)>"


def soft(shape: tuple[int, ...], sharpness: float) -> np.ndarray:
    """Attention as hard to compress as any: of random scores."""
    scores = sharpness * np.random.default_rng(0).standard_normal(shape, np.float32)
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def write_large(path: Path) -> np.ndarray:
    S = LARGE[-1]
    weights, special = soft(LARGE, 1.0), np.isin(np.arange(S), (0, S - 1))
    tokens = ["[CLS]", *map(str, range(S - 2)), "[SEP]"]
    segments = np.zeros(S, np.int64)
    write_attention(
        path, texts=["a b"], tokens=tokens, segments=segments, special=special, weights=weights,
        facts={},
    )  # fmt: skip
    return weights


def write_pair(path: Path) -> np.ndarray:
    tokens = ["[CLS]", "she", HOSTILE, "[SEP]", "ran", "[SEP]"]
    segments, special = np.array([0, 0, 0, 0, 1, 1]), np.array([1, 0, 0, 1, 0, 1])
    weights = soft((2, 3, 6, 6), 2.0)
    write_attention(
        path, texts=[f"she {HOSTILE}", "ran"], tokens=tokens, segments=segments, special=special,
        weights=weights, facts={"model": HOSTILE},
    )  # fmt: skip
    return weights


@pytest.mark.parametrize("sharpness", [0.0, 4.0])
def test_packed_weights_are_as_near_as_they_say(sharpness: float) -> None:
    weights = soft((2, 4, 32, 32), sharpness)
    packed = pack(weights)
    codes = np.frombuffer(zlib.decompress(base64.b64decode(packed.text)), np.uint8)
    found = codes.reshape(weights.shape) / packed.levels
    assert np.abs(found - weights).max() == pytest.approx(packed.error, abs=1e-6)
    assert packed.error <= 0.5 / packed.levels + 1e-6
    assert packed.levels == 255


def test_words_of_a_page_are_text(tmp_path: Path) -> None:
    write_neighbours(tmp_path / "page.html", {HOSTILE: [(HOSTILE, 0.5)]}, {"model": HOSTILE})
    text = (tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert ">0.50<" in text


@pytest.mark.slow
def test_a_page_of_a_large_model_is_below_2_mb(tmp_path: Path) -> None:
    weights = write_large(tmp_path / "large.html")
    text = (tmp_path / "large.html").read_text()
    assert len(text) < 2_000_000
    assert f"at most {pack(weights).error:.2%} from the model" in text
    assert "default-src 'none'" in text


browser = pytest.mark.skipif(BROWSER is None, reason=WITHOUT)
WIDTHS = "page => [page.documentElement.clientWidth, page.documentElement.scrollWidth]"


@pytest.mark.slow
@pytest.mark.processes
@browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_large_model_fits_its_window(width: int, tmp_path: Path) -> None:
    write_large(tmp_path / "page.html")
    window, content = acted(tmp_path / "page.html", WIDTHS, tmp_path, width=width)
    assert content == window <= width


@pytest.mark.slow
@pytest.mark.processes
@browser
def test_attention_is_shown_where_one_points(tmp_path: Path) -> None:
    weights = write_pair(tmp_path / "page.html")
    found = acted(
        tmp_path / "page.html",
        """async page => {
  const all = (where, kind) => [...page.querySelectorAll(`.${where} ${kind}`)];
  const texts = list => list.map(element => element.textContent);
  const shares = () => texts(all("tokens", ".share.of-right"));
  const press = (element, key) => element.dispatchEvent(new page.defaultView.KeyboardEvent(
    "keydown", {key, bubbles: true}));
  const heads = all("heads", ".head"), found = {};
  heads[4].click();
  all("from", "button")[1].dispatchEvent(new Event("mouseenter"));
  found.one = shares();
  all("heads", ".row")[2].click();
  all("from", "button")[1].dispatchEvent(new Event("mouseenter"));
  found.layer = shares();
  found.state = page.getElementById("state").textContent;
  page.getElementById("hidden").click();
  found.tokens = texts(all("from", "button"));
  press(heads[0], "ArrowDown");
  found.focused = page.activeElement.title;
  page.getElementById("direction").value = "01";
  page.getElementById("direction").dispatchEvent(new Event("change"));
  all("from", "button")[0].click();
  found.between = shares();
  press(all("from", "button")[0], "Escape");
  found.released = shares();
  found.title = page.title;
  found.images = page.images.length;
  return found;
}""",
        tmp_path,
    )

    def shown(shares: np.ndarray) -> list[str]:
        return [
            f"{share:.0%}" if share >= 0.0995
            else f"{share:.1%}"
            for share in shares
        ]  # fmt: skip

    steps = np.rint(weights * 255) / 255
    assert found["one"] == shown(steps[1, 1, 1])
    assert found["layer"] == shown(steps[1].mean(0)[1])
    assert found["state"].startswith("mean of the 3 heads of layer 1: “she” reads ")
    assert found["tokens"] == ["she", HOSTILE, "ran"]
    assert found["focused"] == "layer 1, head 0"
    assert found["between"] == ["", "", *shown(steps[1].mean(0)[1, 4:5])]
    assert found["released"] == ["", "", ""]
    assert (found["title"], found["images"]) == ("What a model attends to", 0)


@pytest.mark.slow
@pytest.mark.processes
@browser
@pytest.mark.parametrize("width", [390, 1280])
def test_senses_are_shown_layer_by_layer(width: int, tmp_path: Path) -> None:
    sentences = [Shown("a ", "bank", f" {HOSTILE}"), Shown("", "bank", " b"), Shown("", "bank", "")]
    write_senses(
        tmp_path / "page.html", sentences=[*sentences, Shown("", "banks", "")],
        names=[HOSTILE, "river"], labels=np.array([0, 0, 1, 1]),
        components=np.random.default_rng(0).normal(size=(3, 4, 2)),
        nearest=np.array([[0, 1, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1]]), facts={"model": HOSTILE},
        rows=[[str(i), "50.0%", "1.0% to 99.0%", "90.0%"] for i in range(3)],
    )  # fmt: skip
    found = acted(
        tmp_path / "page.html",
        """page => {
  const state = () => page.getElementById("state").textContent;
  const wrong = () => [...page.querySelectorAll("#wrong .example")].map(one => one.textContent);
  const press = key => page.getElementById("picture").dispatchEvent(
    new page.defaultView.KeyboardEvent("keydown", {key, bubbles: true}));
  const found = {states: [state()], wrong: [wrong()]};
  page.querySelectorAll(".bars button")[1].click();
  found.states.push(state());
  found.wrong.push(wrong());
  page.getElementById("layer").value = 0;
  page.getElementById("layer").dispatchEvent(new Event("input"));
  found.states.push(state());
  press("ArrowRight");
  found.first = page.getElementById("sentence").textContent;
  page.querySelector("#senses input").click();
  press("ArrowRight");
  found.next = page.getElementById("sentence").textContent;
  const root = page.documentElement;
  found.widths = [root.clientWidth, root.scrollWidth, page.images.length];
  found.title = page.title;
  found.outlined = page.getElementById("outlined").innerText;
  return found;
}""",
        tmp_path,
        width=width,
    )
    assert found["states"] == [
        "2 of 2: 100.0% right", "1 of 2: 75.0% right", "0, the embeddings: 50.0% right",
    ]  # fmt: skip
    assert found["outlined"] == "Outlined: nearer to another sense."
    assert found["wrong"] == [[], [f"bank river \u2192 {HOSTILE}"]]
    assert found["first"] == f"{HOSTILE}: a bank {HOSTILE}"
    assert found["next"] == f"river (nearer to {HOSTILE}): bank"
    window, content, images = found["widths"]
    assert (content, images) == (window, 0)
    assert found["title"] == "Senses of “bank”"


@pytest.mark.slow
@pytest.mark.processes
@browser
@pytest.mark.parametrize("dark", [False, True])
def test_words_beside_bars_have_the_colour_of_the_text(dark: bool, tmp_path: Path) -> None:
    write_neighbours(tmp_path / "page.html", {"bank": [("river", 0.5)]}, {"model": "m"})
    colors, filtered = acted(
        tmp_path / "page.html",
        """page => {
  const style = element => page.defaultView.getComputedStyle(element);
  const [word, svg] = [page.querySelector("svg text"), page.querySelector("svg")];
  return [[style(word).fill, style(page.body).color], style(svg).filter];
}""",
        tmp_path,
        dark=dark,
    )
    assert colors[0] == colors[1] == ("rgb(220, 228, 236)" if dark else "rgb(28, 39, 51)")
    assert filtered == "none"
