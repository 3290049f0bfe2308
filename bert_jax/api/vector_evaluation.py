"""`bert-jax evaluate --model`: what the vectors of a model are worth, on pairs of texts with scores
and in a search; beside a baseline by words, and beside other models."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.ablation.intervals import ALPHA, Interval, student_t
from bert_jax.api import bm25
from bert_jax.api.corpus_search import SearchSettings, Watch, is_cosine, watched
from bert_jax.api.correlations import NAMES, RESAMPLES, resampled
from bert_jax.api.evaluation_table import Evaluation, Row, Value
from bert_jax.api.model import Model, load
from bert_jax.api.search import top_rows
from bert_jax.checkpoint.catalog import complete_steps
from bert_jax.checkpoint.manager import known_run, load_params
from bert_jax.config.recorded import HEAD, config_of, trained_model_of
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.task_model import TaskModelConfig, without_head
from bert_jax.convert import weights
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.convert.sources import read_run_tokenizer
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count
from bert_jax.finetune.tasks import sentence_metrics
from bert_jax.finetune.tasks.baselines import is_installed, share_of_words, word_vectors
from bert_jax.finetune.tasks.metrics import measure
from bert_jax.finetune.tasks.retrieval_files import (
    Retrieval,
    ScoredPairs,
    read_retrieval,
    read_scored_pairs,
)
from bert_jax.metrics.retrieval import FOUND, MEASURES, NOTHING, gains
from bert_jax.objectives.disentangled_embeddings import GENERATOR
from bert_jax.workdir.layout import Workdir, split_step

_SHARED_WORDS: Final = "shared words (Jaccard)"
_RARE_WORDS: Final = "shared words, weighted by their rarity"
_BM25: Final = "BM25"
_BASELINES: Final = (_SHARED_WORDS, _RARE_WORDS, _BM25)
_BLOCK: Final = 2048  # texts between two steps of the bar
_SHORTEST: Final = 1e-12  # length by which a vector is divided
_FEWEST: Final = 10  # pairs of an interval
_DEFINED: Final = 0.99  # share of the resamples in which a correlation is defined
_BOOTSTRAP: Final = f"{RESAMPLES:,} resamples of the pairs"
_STUDENT: Final = "Student's t over the queries"
_REMEDY: Final = "set similarity_fn_name to cosine or dot in config_sentence_transformers.json"
# Names of the prompts of each side, as in sentence-transformers; the first that a folder has.
_QUERY: Final = ("query",)
_DOCUMENT: Final = ("document", "passage", "corpus")


def evaluate_scored_pairs(
    model: str, path: epath.PathLike, beside: Sequence[str] = ()
) -> Evaluation:
    """Returns Spearman's and Pearson's correlation of cosines with the scores of pairs, beside the
    words that both texts share, counted and weighted by their rarity in the file, for which
    scikit-learn must be installed; intervals by a bootstrap of the pairs.

    Args:
        model: folder of a model, or the workdir of a run, also as WORKDIR@STEP.
        path: see `read_scored_pairs`.
        beside: further models.

    Raises:
        UserError: a model cannot be loaded, or as `read_scored_pairs`.
    """
    data = read_scored_pairs(path)
    notes = list(data.notes)
    models = _models(model, beside, notes)
    named = {one: _cosines(loaded, one, data) for one, loaded in models}
    named |= _by_words(data.pairs, notes)
    scores = np.array(data.scores)
    values = {name: measure(("spearman", "pearson"), scores, one) for name, one in named.items()}
    drawn = resampled(scores, list(named.values())) if len(scores) >= _FEWEST else {}
    rows = []
    for measured in NAMES:
        own = values[model][measured]
        for place, name in enumerate(named):
            value = values[name][measured]
            some, first = (drawn[measured][i] if drawn else None for i in (place, 0))
            difference = None
            if place:
                between = None if value is None or own is None else own - value
                spread = None if some is None or first is None else first - some
                difference = Value(between, _percentiles(spread))
            found = Value(value, _percentiles(some))
            rows.append(Row(measured.title(), name, len(scores), found, difference))
    return Evaluation(data.path, count(len(scores), "pair"), _BOOTSTRAP, rows, notes)


def evaluate_retrieval(
    model: str, folder: epath.PathLike, beside: Sequence[str] = (), split: str | None = None
) -> Evaluation:
    """Returns nDCG@10, recall@1, recall@10 and MRR@10 of an exact search among all documents,
    beside BM25; intervals by Student's t over the queries.

    Args:
        model: folder of a model, or the workdir of a run, also as WORKDIR@STEP.
        folder, split: see `read_retrieval`.
        beside: further models.

    Raises:
        UserError: a model cannot be loaded, or as `read_retrieval`.
    """
    data = read_retrieval(folder, split)
    notes = list(data.notes)
    models = _models(model, beside, notes)
    found = {one: by_vectors(loaded, one, data) for one, loaded in models}
    if bm25.is_installed():
        found[_BM25] = by_words(data)
    else:
        notes.append(bm25.NOT_INSTALLED)
    rows = []
    for measured in MEASURES:
        values = {name: of_queries[measured] for name, of_queries in found.items()}
        for name, own in values.items():
            difference = None if name == model else _mean(values[model] - own, -1)
            rows.append(Row(measured, name, len(own), _mean(own, 0), difference))
    return Evaluation(data.path, data.size, _STUDENT, rows, notes)


def load_model(source: str) -> Model:
    """Loads the model in a folder, or the checkpoint of a run, whose vectors are those that it
    trained, or the mean of its token states.

    Raises:
        UserError: there is none, or it is damaged.
        StorageError: a checkpoint is damaged.
    """
    return _load(source)[0]


def _load(source: str) -> tuple[Model, str]:
    """Returns the model, and of a run in words which one it is and on how long examples it was
    trained; errors as `load_model`."""
    path, step = split_step(source)
    run = Workdir.open(path)
    if not run.is_run():
        return load(source), ""
    params, meta = load_params(run, step)
    whole = config_of(meta)
    trained = max(phase.seq_length for phase in whole.phases[: meta["phase"] + 1])
    said = f"; trained on examples of up to {trained:,}"
    if GENERATOR in params:
        said += "; the discriminator of the run, not its generator"
    return model_of_run(trained_model_of(meta), whole, params, read_run_tokenizer(run, meta)), said


def model_of_run(
    model: ModelConfig, config: Config, params: Mapping[str, Any], tokenizer: Tokenizer
) -> Model:
    """Returns the model that a run trained; model: its architecture, of `params`."""
    sentence, left_out = encoder_of_run(config, params), ""
    if sentence and isinstance(model, TaskModelConfig):  # its head is for training alone
        left_out, model = model.head.name, without_head(model)
    groups = frozenset(weights.groups_in(params)) - {left_out}
    own = {name: tree for name, tree in params.items() if name in groups}
    return Model(model, own, tokenizer, groups, sentence)


def _models(model: str, beside: Sequence[str], notes: list[str]) -> Iterator[tuple[str, Model]]:
    """Yields each model by its name, one in memory at a time; adds to the notes how much of a text
    it reads."""
    for name in _distinct(model, beside):
        loaded, said = _load(name)
        reads = f"reads the first {loaded.longest:,} tokens of a text, specials included{said}"
        notes.append(f"{name}: {reads}")
        yield name, loaded


def _distinct(model: str, beside: Sequence[str]) -> list[str]:
    """Returns the names of all models, and the start of a run; UserError if one is given twice, or
    has the name of a baseline, which would take its place."""
    names = [model, *beside]
    if taken := next((name for name in names if name in _BASELINES), None):
        raise UserError(f"{taken}: a baseline has this name; give the folder as ./{taken}")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{twice}: given twice; compare different models")
    return list(dict.fromkeys([*names, *_start_of(model)]))


def _start_of(model: str) -> list[str]:
    """Returns step 0 of a run that trained vectors, where the run has kept it."""
    path, step = split_step(model)
    run = Workdir.open(path)
    if step == 0 or not run.is_run() or 0 not in complete_steps(run.checkpoints):
        return []
    known = known_run(run)
    return [f"{path}@0"] if known and known["data"].get(HEAD, {}).get("vectors") else []


def _cosines(model: Model, name: str, data: ScoredPairs) -> np.ndarray:
    """Returns the cosine of the vectors of each pair: [N]."""
    texts = list(dict.fromkeys(text for pair in data.pairs for text in pair))
    vectors = _encode(model, name, texts, ())
    place = {text: row for row, text in enumerate(texts)}
    exact = vectors.astype(np.float64)
    exact /= np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), _SHORTEST)
    first, second = (exact[[place[pair[i]] for pair in data.pairs]] for i in (0, 1))
    return np.asarray(np.einsum("nd,nd->n", first, second))


def _by_words(pairs: Sequence[tuple[str, str]], notes: list[str]) -> dict[str, np.ndarray]:
    """Returns how alike the words of each pair are, [N], by the name of each baseline; notes: to
    which the reason is added if one is missing."""
    found = {_SHARED_WORDS: share_of_words(pairs)}
    if not is_installed():
        notes.append(f"\"{_RARE_WORDS}\" needs scikit-learn; pip install 'bert-jax[finetune]'")
        return found
    texts = [text for pair in pairs for text in pair]
    vectors = word_vectors(texts, texts)
    if vectors is not None:
        found[_RARE_WORDS] = sentence_metrics.cosines(vectors)
    return found


def by_vectors(
    model: Model, name: str, data: Retrieval, watch: Watch = watched
) -> dict[str, np.ndarray]:
    """Returns each of `MEASURES` of each query, [Q], of the documents with the highest cosine, or
    dot product if the folder names that; UserError if it names a distance."""
    cosine = is_cosine(model, SearchSettings(), _REMEDY)
    documents = _encode(model, name, data.documents, _DOCUMENT, watch)
    queries = _encode(model, name, data.queries, _QUERY, watch)
    with watch(f"{name}: documents compared", len(documents)) as done:
        _, rows = top_rows(queries, documents, _ranked(data), cosine=cosine, done=done)
    return _measured(data, rows)


def by_words(data: Retrieval, watch: Watch = watched) -> dict[str, np.ndarray]:
    """Returns each of `MEASURES` of each query, [Q], of the documents that BM25 finds, for which
    bm25s must be installed."""
    with watch("BM25: queries", len(data.queries)) as done:
        rows = bm25.find(data.queries, data.documents, _ranked(data), done)
    return _measured(data, rows)


def _ranked(data: Retrieval) -> int:
    """Returns how many documents are ranked for a query, of which one may be left out."""
    return FOUND + any(place >= 0 for place in data.own)


def _measured(data: Retrieval, ranking: np.ndarray) -> dict[str, np.ndarray]:
    found = gains(_without(data.own, ranking), data.relevance)
    return {name: of(found, data.relevance) for name, of in MEASURES.items()}


def _encode(
    model: Model, name: str, texts: Sequence[str], prompts: Sequence[str], watch: Watch = watched
) -> np.ndarray:
    """Returns the vectors of texts: float32 [T, D].

    prompts: names, of which the first that the folder has comes before each text; by default that
        which it has for every text.
    """
    known = model.sentence.prompts if model.sentence else {}
    prompt = next((one for one in prompts if one in known), None)
    blocks = []
    with watch(f"{name}: texts", len(texts)) as done:
        for start in range(0, len(texts), _BLOCK):
            block = texts[start : start + _BLOCK]
            blocks.append(model.encode(block, prompt_name=prompt))
            done(start + len(block))
    return np.concatenate(blocks)


def _without(own: Sequence[int], ranking: np.ndarray) -> np.ndarray:
    """Returns the rankings without the document that is the query itself: [Q, K]."""
    is_own = (ranking == np.array(own)[:, None]) & (ranking != NOTHING)
    order = np.argsort(is_own, axis=1, kind="stable")  # it comes last
    last = np.take_along_axis(np.where(is_own, NOTHING, ranking), order, axis=1)
    return np.asarray(last[:, :FOUND])


def _mean(values: np.ndarray, least: float) -> Value:
    """Returns the mean of values from `least` to 1 over queries, and its interval; none where all
    are equal, as t's would then have no width."""
    if np.ptp(values) == 0:
        return Value(float(values[0]), None)
    estimate = student_t(values)
    low, high = estimate.interval
    return Value(estimate.mean, Interval(max(low, least), min(high, 1.0)))


def _percentiles(drawn: np.ndarray | None) -> Interval | None:
    """Returns the interval of resampled correlations, or of differences; None without enough."""
    if drawn is None or np.isfinite(drawn).mean() < _DEFINED:
        return None
    low, high = np.quantile(drawn[np.isfinite(drawn)], [ALPHA / 2, 1 - ALPHA / 2])
    return Interval(float(low), float(high))
