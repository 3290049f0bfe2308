"""Invalid text, tokenizers and settings: one-line errors, and all readable parts are read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stores import StoredDocument, make_split

from bert_jax.data_pipeline.plan import mixing
from bert_jax.data_pipeline.plan.plan_settings import PlanSettings
from bert_jax.data_pipeline.sources import find, parse_source, read
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store_build.build import build_store
from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer
from bert_jax.data_pipeline.tokenizer.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.errors import UserError
from bert_jax.storage import cache_dir

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocab([*SPECIAL_TOKENS, ".", *LETTERS, *(f"##{c}" for c in LETTERS)])
GOOD = "\n".join(json.dumps({"title": "", "text": f"One {c}. Two {c}."}) for c in LETTERS[:8])


def made(source: str, folder: Path) -> TokenStore:
    return build_store(
        [parse_source(source)], TOKENIZER, folder / "store", workers=1, progress=False
    )


# WikiExtractor's JSON ----------------------------------------------------------------------------

DEEP = 100_000
LINES = [
    "null",
    "3",
    "[]",
    '"text"',
    "{}",
    '{"title": "A"}',
    '{"text": "A"}',
    '{"title": null, "text": "A"}',
    '{"title": "A", "text": null}',
    '{"title": 3, "text": "A"}',
    '{"title": "A", "text": ["A"]}',
    '{"title": "A", "text": {"a": 1}}',
    '{"title": true, "text": 1.5}',
    '{"title": "A", "text": "A"',
    '{"title": "A", "text": "A"}}',
    '{"title": "A", "text": NaN}',
    "[" * DEEP,
    '{"a":' * DEEP,
    '{"title": "A", "text": ' + "[" * DEEP + "]" * DEEP + "}",
    '{"title": "A", "text": ' + "9" * 10_000 + "}",
    "\x00",
]


@pytest.mark.parametrize("line", LINES, ids=[line[:30] for line in LINES])
def test_a_line_that_is_no_article_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "wiki_00").write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(UserError, match="wiki_00: line 9 is not a JSON object") as caught:
        made(f"wikiextractor:{tmp_path}/wiki_00", tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("number", [None, 3, [1], {"a": "b"}, "x" * 100_000, "\ud800"])
def test_an_id_may_be_anything(tmp_path: Path, number: object) -> None:
    row = json.dumps({"id": number, "title": "A", "text": "Some text."})
    (tmp_path / "wiki_00").write_text(f"{GOOD}\n{row}\n")
    assert len(made(f"wikiextractor:{tmp_path}/wiki_00", tmp_path).train.tokens)


# Half a surrogate pair ---------------------------------------------------------------------------


def test_lone_surrogates_in_json_cost_a_character_not_the_build(tmp_path: Path) -> None:
    rows = [
        r'{"title": "\ud83d", "text": "One \ud800 a. Two\udfff b."}',
        r'{"title": "T", "text": "A pair \ud83d\ude00 stays."}',
    ]
    (tmp_path / "wiki_00").write_text("\n".join([GOOD, *rows]))
    spec = parse_source(f"wikiextractor:{tmp_path}/wiki_00")
    *_, broken, pair = read(spec, tmp_path / "wiki_00")
    assert (broken.title, broken.text) == ("\ufffd", "One \ufffd a. Two\ufffd b.")
    assert pair.text == "A pair \U0001f600 stays."
    store = made(f"wikiextractor:{tmp_path}/wiki_00", tmp_path)
    assert store.manifest["sources"][0]["rules"]["invisible_character"] == 2
    open_store(store.path)


def test_lone_surrogates_in_docstrings(tmp_path: Path) -> None:
    text = tmp_path / "text"
    (text / "pydoc_data").mkdir(parents=True)
    topics = (
        f"topics = {{'a': 'Text {chr(92)}ud800 of a topic.', '{chr(92)}udfff': 'More text.'}}\n"
    )
    (text / "pydoc_data/topics.py").write_text(topics)
    (text / "m.py").write_text('"""One \\ud800 two three four."""\n')
    spec = parse_source(f"python:{text}")
    texts = [d.text for file in find(spec).files for d in read(spec, file)]
    assert texts == ["One \ufffd two three four.", "Text \ufffd of a topic.", "More text."]
    assert len(made(f"python:{text}", tmp_path).train.tokens)


@pytest.mark.parametrize("kind", ["lines", "books", "wikiextractor"])
def test_surrogates_as_bytes_are_not_utf8(tmp_path: Path, kind: str) -> None:
    article = b'<doc id="1" url="" title="T">\nOne \xed\xa0\x80 two.\n</doc>\n'
    (tmp_path / "a.txt").write_bytes(article if kind == "wikiextractor" else b"One \xed\xa0\x80.\n")
    with pytest.raises(UserError, match=r"a\.txt: not UTF-8 at byte \d+ \(0xed\)"):
        made(f"{kind}:{tmp_path}/a.txt", tmp_path)


@pytest.mark.parametrize("entity", ["&#xd800;", "&#55296;", "&#x110000;", "&#0;", "&#xFFFFFF;"])
def test_entities_of_no_character(tmp_path: Path, entity: str) -> None:
    text = "\n\n".join(f"One {entity} {c}.\nTwo." for c in LETTERS)
    (tmp_path / "a.txt").write_text(text)
    for kind in ("lines", "books"):
        made(f"{kind}:{tmp_path}/a.txt,lines=5", tmp_path / kind)
    article = f'<doc id="1" url="" title="{entity}">\n{entity}\n\n{text}\n</doc>\n'
    (tmp_path / "wiki_00").write_text(article)
    made(f"wikiextractor:{tmp_path}/wiki_00", tmp_path / "wiki")


def test_a_vocabulary_is_trained_on_such_text_too(tmp_path: Path) -> None:
    row = r'{"title": "T", "text": "One \ud800 two."}'
    (tmp_path / "wiki_00").write_text(f"{GOOD}\n{row}\n")
    for model in ("wordpiece", "bpe"):
        spec = parse_source(f"wikiextractor:{tmp_path}/wiki_00")
        trained = train_tokenizer([spec], 38, model=model, progress=False)  # type: ignore[arg-type]
        assert trained.vocab_size in (35, 38)


# Tokenizers --------------------------------------------------------------------------------------


def altered(**parts: object) -> bytes:
    return json.dumps({**json.loads(TOKENIZER.json), **parts}).encode()


BACKTRACKS = {"Regex": "(a+)+$"}
SPLIT = {"type": "Split", "pattern": BACKTRACKS, "behavior": "Isolated", "invert": False}
REPLACE = {"type": "Replace", "pattern": BACKTRACKS, "content": "x"}


@pytest.mark.parametrize("parts", [{"pre_tokenizer": SPLIT}, {"normalizer": REPLACE}])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.processes
def test_a_regular_expression_that_never_ends_is_one_line(
    tmp_path: Path, parts: dict[str, object], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(altered(**parts))
    text = tmp_path / "text"
    text.mkdir()
    for name in "ab":
        (text / f"{name}.txt").write_text(f"{'a' * 40}b {name}.\n\none.\n\ntwo.\n")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    source = parse_source(f"lines:{text}")
    monkeypatch.setattr("bert_jax.data_pipeline.store_build.units._UNIT_BYTES", 1)
    with pytest.raises(UserError, match=r"tokenizer\.json: the tokenizers library failed"):
        build_store([source], tokenizer, tmp_path / "store", workers=workers, progress=False)


@pytest.mark.parametrize("value", ["maybe", 1, 0.5, [], {}, "true"])
def test_a_vocabulary_says_with_true_or_false_whether_it_is_cased(value: object) -> None:
    entries = [*SPECIAL_TOKENS, "a"]
    with pytest.raises(UserError, match=r"do_lower_case is .*, must be true or false"):
        Tokenizer.from_vocab(entries, lowercase=value)  # type: ignore[arg-type]
    for good in (True, False, None):
        Tokenizer.from_vocab(entries, lowercase=good)


# The cache folder --------------------------------------------------------------------------------


def test_a_user_without_a_home_is_told_what_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    monkeypatch.delenv("BERT_JAX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UserError, match="set BERT_JAX_CACHE to a folder"):
        cache_dir.cache_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_dir.cache_dir() == Path("/caches/bert_jax")
    monkeypatch.setenv("BERT_JAX_CACHE", "/mine")
    assert cache_dir.cache_dir() == Path("/mine")


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become an unknown user")
@pytest.mark.processes
def test_an_unknown_user_without_home_is_told_too() -> None:
    script = (
        "import os; from bert_jax.storage.cache_dir import cache_dir; "
        "os.setuid(54321); "
        "[os.environ.pop(n, None) for n in ('HOME', 'BERT_JAX_CACHE', 'XDG_CACHE_HOME')]; "
        "cache_dir()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert "UserError: no home folder" in done.stderr


# Weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1e300, 1e10, 10_001.0, float("inf"), float("nan"), -1.0])
def test_a_weight_that_cannot_be_meant(weight: float) -> None:
    with pytest.raises(UserError, match=r"source_weights: books=.* should be from 0 to 10000"):
        PlanSettings(source_weights=f"books={weight}")


@pytest.mark.parametrize("smoothing", [1e300, 11.0, float("inf"), float("nan"), -0.1])
def test_a_smoothing_that_cannot_be_meant(smoothing: float) -> None:
    with pytest.raises(UserError, match="language_smoothing"):
        PlanSettings(language_smoothing=smoothing)


def visits(tokens: list[int], weight: float, smoothing: float) -> np.ndarray:
    documents = [StoredDocument([[5] * n], language=i) for i, n in enumerate(tokens)]
    split = make_split("train", documents, 10)
    sizes = np.array(tokens, np.int64)
    return mixing.expected_visits(split, sizes, {"books": weight}, smoothing, ["books"])


def test_a_rare_language_is_not_read_without_end() -> None:
    with pytest.raises(UserError, match=r"language_smoothing=0: .* times per epoch"):
        visits([1, 1_000_000], 1.0, 0.0)
    assert visits([1, 1_000_000], 10_000.0, 1.0).tolist() == [10_000.0, 10_000.0]
    for smoothing in (0.0, 0.7, 10.0):
        found = visits([10, 1000], 1e-300, smoothing)
        assert np.isfinite(found).all()
