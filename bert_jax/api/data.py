"""Token stores and batches from Python: `bert_jax.build_store`, `inspect` and `batches`."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from bert_jax.config.schema import Config
from bert_jax.config.serialization import to_dict
from bert_jax.convert.model_folders import load_tokenizer
from bert_jax.data_pipeline.assemble import Batch
from bert_jax.data_pipeline.sources import SourceSpec
from bert_jax.data_pipeline.sources.documents import Content, write
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store_build import build, vocabulary
from bert_jax.data_pipeline.text.sentences import check_language
from bert_jax.data_pipeline.tokenizer.byte_level_bpe import SpecialTokens
from bert_jax.data_pipeline.tokenizer.tokenizer import Algorithm, Tokenizer
from bert_jax.errors import UserError
from bert_jax.storage import hub
from bert_jax.storage.outputs import check_output
from bert_jax.training.batches import phase_batches
from bert_jax.workdir.inputs import inputs_of_config


def build_store(
    documents: Iterable[Content],
    out: Path | str,
    *,
    tokenizer: Tokenizer | Path | str | None = None,
    vocab_size: int = 30_522,
    algorithm: Algorithm = "wordpiece",
    lowercase: bool = True,
    special_tokens: SpecialTokens = "modernbert",
    field: str = "text",
    name: str = "documents",
    language: str = "en",
    held_out_share: float | None = None,
    workers: int = 1,
    progress: bool = True,
) -> TokenStore:
    """Builds a token store from any iterable, such as a split of a dataset of `datasets`.

    Opens the store at `out` if it was built from the same documents and settings. The documents are
    first written to a temporary folder next to `out`.

    Args:
        documents: any iterable, read once: strings, of which every line is a paragraph, lists of
            sentences, or mappings that hold one of these, or None, in `field`.
        out: folder of the store.
        tokenizer: a tokenizer, the path of a tokenizer.json, a vocab.txt or a SentencePiece
            .model, or hf:OWNER/NAME, that of a model on the hub. None trains one on the documents.
        vocab_size, algorithm, lowercase: of a trained tokenizer; little text yields fewer entries.
        special_tokens: of byte-level BPE, "modernbert" or "roberta".
        field: key of the text in a mapping.
        name: name of the source, used in the names of metrics.
        language: ISO 639 code, for the sentence splitter.
        held_out_share: share of the documents that is held out for evaluation, 0 to 0.5. None is
            1 %, at least 20 documents where these are at most 5 %.
        workers: processes; a script needs `if __name__ == "__main__":` for more than one.
        progress: show bars and tables on standard error.

    Raises:
        UserError: one of `documents` is none, they hold no text or too little for the vocabulary,
            or another store or anything else is at `out`.
        Exception: whatever iterating raises, with a note; no store is written.
    """
    check_language(language)
    out = build.check_out(out)
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        with hub.own_commits():
            build.use_recorded([tokenizer], out)
            tokenizer = load_tokenizer(tokenizer)
    with _written(documents, out, name, language, field) as source:
        if tokenizer is None:
            tokenizer = vocabulary.train_tokenizer(
                [source], vocab_size, model=algorithm, lowercase=lowercase,
                special_tokens=special_tokens, progress=progress,
            )  # fmt: skip
        return build.build_store(
            [source], tokenizer, out,
            held_out_share=held_out_share, workers=workers, progress=progress,
        )  # fmt: skip


@contextmanager
def _written(
    documents: Iterable[Content], out: Path, name: str, language: str, field: str
) -> Iterator[SourceSpec]:
    """The documents as a source of a build, in a temporary folder next to `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.documents.", dir=out.parent) as folder:
        write(documents, Path(folder), field)
        yield SourceSpec("documents", Path(folder), name, language)


def inspect(
    store: TokenStore | Path | str,
    config: Config,
    *,
    phase: int = 0,
    split: Literal["train", "held_out"] = "train",
    examples: int = 5,
    html: Path | str | None = None,
) -> None:
    """Prints what a store holds and the examples that a config makes from it.

    Args:
        phase: index in `config.phases`.
        examples: number of decoded examples, with their masks.
        html: page to write, with plots.

    Raises:
        UserError: no such store, phase or split, or `html` may not be written.
    """
    from bert_jax.reporting import dataset
    from bert_jax.reporting.html import PAGE

    path = store.path if isinstance(store, TokenStore) else store
    page = None if html is None else os.fspath(html)
    if page is not None:
        check_output(page, PAGE, inputs=[path, *inputs_of_config(to_dict(config))])
    dataset.inspect(path, config, phase=phase, split_name=split, examples=examples, page=page)


def batches(
    config: Config, store: TokenStore | Path | str | None = None, *, start: int = 0
) -> Iterator[Batch]:
    """Yields the global batch of every step of a run, as the trainer gets it.

    A batch depends only on the seed and the step: `start=1000` yields the same batches as the
    iterator without it after 1,000 of them.

    Args:
        store: a store or its path; None opens `config.data.store`.
        start: the first step, counted from 0 over all phases.

    Yields:
        A dict of new arrays. B = `batch_size`, S = `row_length` or else `seq_length`, P =
        `max_predictions`, or what a mask rate of the phase's own takes (more in longer rows), and
        N = `examples_per_row` of the step's phase:

        - input_ids, token_type_ids, position_ids (from 0 in every example), example_ids (from 1 in
          every row, 0 = padding): int32 [B, S].
        - masked_positions, masked_labels: int32 [B, P]; masked_weights: float32 [B, P], 0 in empty
          slots.
        - With pairs of segments: cls_positions, pair_labels (0 = in order, 1 = random or swapped),
          pair_sources: int32 [B, N]; pair_weights: float32 [B, N].
        - With `config.data.span_boundary`: span_left, span_right, span_offsets: int32 [B, P];
          span_weights: float32 [B, P].
        - With `config.data.replaced_tokens`: draw_keys: uint32 [B, P], a key of the draw that
          replaces each of these tokens, 0 in empty slots.

    Raises:
        UserError: no such store or step, or the store has too little text for the config.
    """
    if not isinstance(store, TokenStore):
        path = config.data.store if store is None else store
        if not path:
            raise UserError("config.data.store is empty; set it, or give the store")
        store = open_store(path)
    first, _ = config.phase_at(start)
    return _batches(config, store, first, start)


def _batches(config: Config, store: TokenStore, first: int, start: int) -> Iterator[dict[str, Any]]:
    for phase, end in zip(config.phases[first:], config.phase_ends[first:], strict=True):
        planned = phase_batches(config, store, store.train, phase)
        begin = end - phase.steps
        for step in range(max(start, begin), end):
            yield planned.batch(step - begin)
