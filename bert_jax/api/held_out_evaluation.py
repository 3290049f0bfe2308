"""`bert-jax evaluate --model --store`: held-out losses of any model, with the evaluation of a run.

A run is measured as it was trained: its form, its length, its dtype; an export too, whose
config.json records the form, in float32. Another folder does not say how it was trained: pairs if
it has that head, 15 % of the tokens of examples of 128.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
from etils import epath

from bert_jax.ablation.intervals import Interval
from bert_jax.api.evaluation_table import Evaluation, Row, Value
from bert_jax.api.masked_scores import check_masked_head
from bert_jax.checkpoint.manager import find_steps, known_run, read_own_meta, read_params
from bert_jax.config.schema import (
    ComputeConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    PhaseConfig,
)
from bert_jax.config.serialization import from_dict
from bert_jax.convert.hf_config import FORM
from bert_jax.convert.sources import read_model, read_run_tokenizer
from bert_jax.data_pipeline.analysis.baselines import (
    bigram_sums,
    tokens_per_document,
    unigram_sums,
)
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.settings import wrong
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count
from bert_jax.metrics import spread
from bert_jax.metrics.run_records import baseline_word, is_finite, objectives_in
from bert_jax.objectives.disentangled_embeddings import GENERATOR
from bert_jax.objectives.known_objectives import OBJECTIVES, chosen, head_title, learned_by
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.next_sentence import NEXT_SENTENCE
from bert_jax.objectives.sentence_order import SENTENCE_ORDER
from bert_jax.parallel.local_devices import power_of_two
from bert_jax.runtime.console import progress
from bert_jax.training.eval_setting import OWN
from bert_jax.training.evaluate import Asked, Measure, asked_form, pretrained
from bert_jax.training.initial_vocabulary import first_difference
from bert_jax.workdir.layout import Workdir, split_step

_LENGTH: Final = 128
_ROWS, _FEWEST = 256, 8  # rows that --batches counts, and parts that they are computed in
_TOKENS = 8192  # of the rows of a part at most, but for a row that is longer
_BY_DOCUMENTS: Final = "Student's t over the documents, weighted by their predictions"


class _Subject(NamedTuple):
    """A model to evaluate.

    Attributes:
        config: its phase `phase` is that of its weights.
        held_out: digest of the text that was held out of its training; "" if it is not known.
        precision: of matrix products, None for that of the run.
        assumed: its form is that of a model that records none.
    """

    params: dict[str, Any]
    config: Config
    phase: PhaseConfig
    tokenizer: Tokenizer
    held_out: str
    precision: str | None
    assumed: bool = False


def evaluate_held_out(
    model: str,
    store: epath.PathLike,
    *,
    batches: int = 0,
    forms: Sequence[str] = (OWN,),
    pairing: str | None = None,
    masking: str | None = None,
) -> Evaluation:
    """Returns losses and accuracies of held-out text beside their baselines, for each form.

    Args:
        model: as `read_model` takes it.
        store: with the model's vocabulary.
        batches, forms, pairing, masking: as `evaluate_run` takes them; of a folder, a batch has 256
            rows.

    Raises:
        UserError: the model cannot be read or predicts no masked tokens, the store has another
            vocabulary or no held-out text, no such form, or the model has no head for its pairing.
    """
    text = open_store(store)
    run = Workdir.open(split_step(model)[0])
    named = [pairing or "", *(form.partition("/")[0] for form in forms)]
    pairs = next((name for name in named if name in PAIRS), None)
    subject = _of_run(model, run, batches) if run.is_run() else _of_folder(model, pairs, batches)
    if MASKED_LM.name not in learned_by(subject.config):
        raise UserError(f"{model}: trained without masked tokens; give a run that learned them")
    if different := first_difference(subject.tokenizer, Tokenizer.load(text.tokenizer_path)):
        raise UserError(
            f"{store}: its vocabulary is not the model's: {different}; build the store with the "
            f"tokenizer of {model}"
        )
    asked = [
        asked_form(name, subject.config, subject.phase, pairing, masking)
        for name in dict.fromkeys(forms)
    ]
    measures = [Measure(each, text) for each in asked]
    rows, shown = list[Row](), list[str]()
    total = sum(measure.held_out.num_batches for measure in measures)
    with progress("batches", total) as bar, jax.default_matmul_precision(subject.precision):
        for measure in measures:
            scalars, _ = measure.evaluate(subject.params, bar)
            form = f" ({measure.name})" if len(measures) > 1 else ""
            rows += _rows(scalars, model, form, of_two=GENERATOR in subject.params)
            shown.append(_shown(measure, scalars))
    rows += _over_all_tokens(text)
    return Evaluation(
        str(store),
        f"{'; '.join(shown)}; losses in nats",
        _BY_DOCUMENTS,
        rows,
        _notes(subject, text, asked),
    )


def _of_run(model: str, run: Workdir, batches: int) -> _Subject:
    """Reads a checkpoint; UserError if the run was fine-tuned."""
    (step,) = find_steps(run, split_step(model)[1])
    meta = read_own_meta(run, step, known_run(run))
    config = pretrained(run, meta, batches)
    phase = from_dict(meta["config"], Config).phases[meta["phase"]]
    params, tokenizer = read_params(run, meta), read_run_tokenizer(run, meta)
    return _Subject(params, config, phase, tokenizer, meta["data"].get("held_out", ""), None)


def _of_folder(model: str, pairs: str | None, batches: int) -> _Subject:
    """Reads any other model; pairs: the pairing with labels that is asked for."""
    read = read_model(model)
    check_masked_head(read)
    has_pairs = NEXT_SENTENCE.head in read.params
    if pairs and not has_pairs:
        title = head_title(NEXT_SENTENCE.head)
        raise UserError(
            f"{model}: no {title}, so pairing={pairs} has nothing to measure; full_sentences, "
            "doc_sentences and single work with any model"
        )
    if form := read.trained_form:
        try:
            data, shape = _recorded(form)
        except UserError as error:
            raise UserError(
                f"{model}: {FORM} of its config.json: {error}; a model without that key is "
                "measured in the default form"
            ) from None
        objectives = [name for name in chosen(data) if OBJECTIVES[name].head in read.params]
    else:
        data, shape = _assumed(read.config, pairs, has_pairs=has_pairs)
        objectives = []  # all that the data has labels for
    phase = PhaseConfig(steps=1, batch_size=_ROWS, **shape)
    parts = min(max(power_of_two(_ROWS * phase.seq_length // _TOKENS), _FEWEST), _ROWS)
    phase = dataclasses.replace(phase, micro_batches=parts)
    config = Config(
        model=read.config,
        data=data,
        objectives=",".join(objectives),
        phases=(phase,),
        compute=ComputeConfig.plain(),
        evaluation=EvaluationConfig(batches=batches),
    )
    return _Subject(
        dict(read.params), config, phase, read.tokenizer, "", "highest", assumed=not form
    )


def _recorded(form: Mapping[str, Any]) -> tuple[DataConfig, dict[str, Any]]:
    """Returns a recorded form as settings of a run, without replaced tokens, whose generator is a
    model of its own; UserError if it is none."""
    if not isinstance(form, Mapping):
        wrong(form, "keys", FORM)
    names = ("seq_length", "max_predictions")
    shape = {name: form[name] for name in names if name in form}
    from_dict(shape, PhaseConfig, FORM)
    data = {name: value for name, value in form.items() if name not in names}
    return from_dict(data | {"replaced_tokens": False}, DataConfig, FORM), shape


def _assumed(
    model: ModelConfig, pairs: str | None, *, has_pairs: bool
) -> tuple[DataConfig, dict[str, Any]]:
    """Returns the same for a model that records no form; pairs: the pairing that is asked for."""
    # Both kinds of pairs have one head; of the released models ALBERT's learned the order.
    own = SENTENCE_ORDER.name if model.layout == "albert" else NEXT_SENTENCE.name
    length = min(_LENGTH, model.max_position_embeddings)
    slots = max(1, math.ceil(DataConfig().mask_rate * length))
    data = from_dict({"pairing": (pairs or own) if has_pairs else "full_sentences"}, DataConfig)
    return data, {"seq_length": length, "max_predictions": slots}


def _rows(scalars: Mapping[str, Any], model: str, form: str, *, of_two: bool) -> list[Row]:
    """Returns the measures of each objective, each before its baseline; of two networks the
    generator predicts masked tokens."""
    rows = []
    for name in objectives_in(scalars):
        own = f"{model}, its generator" if of_two and name == MASKED_LM.name else model
        n = int(scalars[f"{name}/count"])
        trivial = baseline_word(scalars, name)
        for what, most in (("loss", math.inf), ("accuracy", 1.0)):
            measure = f"{name.upper()} {what}{form}"
            for of, key in ((own, f"{name}/{what}"), (trivial, f"{name}/baseline_{what}")):
                if (value := scalars.get(key)) is not None:
                    found = _with_interval(value, scalars.get(f"{key}_margin"), most)
                    rows.append(Row(measure, of, n, found, None))
    return rows


def _with_interval(value: float, margin: float | None, most: float = math.inf) -> Value:
    """Returns a value between 0 and `most` with its interval; without one of few documents."""
    if not is_finite(margin) or not margin:  # 0 where all documents are alike, which is no width
        return Value(value, None)
    return Value(value, Interval(max(value - margin, 0.0), min(value + margin, most)))


def _over_all_tokens(text: TokenStore) -> list[Row]:
    """Returns the losses of the baselines that know no example."""
    sizes, rows = tokens_per_document(text.held_out), list[Row]()
    for name, sums in (("unigram", unigram_sums(text)), ("bigram", bigram_sums(text))):
        n = int(sizes.sum())
        found = _with_interval(float(sums.sum()) / n, spread.margin(sums, sizes))
        rows.append(Row("loss of all held-out tokens", name, n, found, None))
    return rows


def _shown(measure: Measure, scalars: Mapping[str, Any]) -> str:
    about = measure.about
    return (
        f"{about['pairing']}/{about['masking']}@{about['mask_rate']:g}:{about['seq_length']}, "
        f"{count(about['rows'], 'row')} of {count(round(scalars['documents']), 'document')}"
    )


def _notes(subject: _Subject, text: TokenStore, asked: Sequence[Asked]) -> list[str]:
    notes = []
    if subject.held_out not in ("", text.held_out.digest):
        notes.append(
            "the held-out text is not the run's, which may have been trained on some of it"
        )
    if subject.assumed and (own := next((each for each in asked if each.name == OWN), None)):
        data, length = own.form.data, own.form.seq_length
        form = f"{data.pairing}/{data.masking}@{data.mask_rate:g}:{length}"
        notes.append(
            f"the model does not record how it was trained; {form}: what was not given is assumed"
        )
    return notes
