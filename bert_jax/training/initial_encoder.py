"""Takes the dense layers of a sentence encoder that a run starts from, and names what the run
lacks."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax.config.schema import Config
from bert_jax.config.sentence_parts import Dense, Dropout, Normalize, Part, Pooling, parse_pools
from bert_jax.config.task_model import TaskModelConfig, VectorLoss
from bert_jax.convert.run_encoder import PASSAGES, QUERY, dense_layers, encoder_of_run
from bert_jax.convert.sentence_encoder import SentenceEncoder
from bert_jax.convert.tokenizer_files import lowercases
from bert_jax.data_pipeline.settings import shown
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import count
from bert_jax.model.vector_layers import is_layer, parameters_of


def with_dense_layers(
    params: Mapping[str, Any], theirs: SentenceEncoder | None, config: Config
) -> dict[str, Any]:
    """Returns the parameters of a model with the dense layers of its vectors in the head of a run
    that has such layers, too, and nowhere else.

    theirs: what makes vectors with the model; config: of the run.
    """
    kept = {}
    for name, part in params.items():
        own = {key: value for key, value in part.items() if not is_layer(key)}
        if own:
            kept[name] = own
    if theirs is None or not _takes_dense(theirs, config):
        return kept
    assert isinstance(config.model, TaskModelConfig)
    name, layers = config.model.head.name, parameters_of(dense_layers(theirs)[1])
    return {**kept, name: {**kept.get(name, {}), **layers}}


def with_own_paths(leaves: Mapping[str, np.ndarray], config: Config) -> dict[str, np.ndarray]:
    """Returns arrays by path in a run's state, those of dense layers below the head of this run:
    the model that it starts from may have another."""
    head = config.model.head.name if isinstance(config.model, TaskModelConfig) else ""
    found = {}
    for path, leaf in leaves.items():
        names = path.split("/")
        for i, name in enumerate(names[1:] if head else ()):
            if is_layer(name):
                names[i] = head
        found["/".join(names)] = leaf
    return found


def _takes_dense(theirs: SentenceEncoder, config: Config) -> bool:
    """Returns whether a run has the same dense layers as a sentence encoder, and at least one."""
    ours, layers = encoder_of_run(config), dense_layers(theirs)[0]
    return ours is not None and bool(layers) and dense_layers(ours)[0] == layers


def left_out(
    theirs: SentenceEncoder | None, config: Config, tokenizer: Tokenizer
) -> tuple[str, ...]:
    """Returns a line with all that the run's own vectors are made without, each with the key that
    sets it, if there is one; no line if there is nothing.

    Args:
        theirs: of the model that it starts from; None if that makes no vectors.
        config, tokenizer: of the run.
    """
    if theirs is None:
        return ()
    lost = [*_parts(theirs, config), *_prompts(theirs, config)]
    if theirs.lowercase and not lowercases(tokenizer):
        lost.append("lower-casing before the tokenizer (lower-case the texts)")
    lost += _limits(theirs, config)
    return (f"left out, of a sentence encoder: {', '.join(lost)}",) if lost else ()


def _parts(theirs: SentenceEncoder, config: Config) -> Iterator[str]:
    ours = encoder_of_run(config)
    own: tuple[Part, ...] = ours.parts if ours else ()
    layers = [] if _takes_dense(theirs, config) else dense_layers(theirs)[0]
    if layers:
        wanted = ",".join(layer.setting for layer in layers)
        is_set = ours and wanted == ",".join(layer.setting for layer in dense_layers(ours)[0])
        title = " and ".join(layer.title for layer in layers)
        yield _titled(title, "task.dense" if ours and not is_set else "", wanted)
    is_normal = False  # whether the vector has been divided by its length
    for part in theirs.parts:
        is_normal |= isinstance(part, Normalize)
        if isinstance(part, Dense):
            if is_normal:
                yield f"{part.title} after the normalization"
            continue
        if part in own or isinstance(part, Dropout):
            continue
        if ours and isinstance(part, Pooling):
            title = part.title + ("" if part.include_prompt else " without the prompt's tokens")
            differs = part.pools != parse_pools(config.task.pooling)
            yield _titled(title, "task.pooling" if differs else "", ",".join(part.pools))
        elif ours and isinstance(part, Normalize):
            yield _titled(part.title, "task.normalize", True)
        else:
            yield part.title
    if Normalize() in own and Normalize() not in theirs.parts:
        yield _titled("vectors of any length", "task.normalize", False)


def _prompts(theirs: SentenceEncoder, config: Config) -> Iterator[str]:
    """Yields the prompts of queries and passages, then the names of others."""
    ours, loss = encoder_of_run(config), _loss_of_vectors(config)
    own, query = ours.prompts if ours else {}, ""
    has_keys = loss not in (None, "reconstruction")
    follows = loss != "negatives" and not config.task.passage_prompt  # that of passages, the other
    for side, names in (("query", (QUERY,)), ("passage", PASSAGES)):
        text = next((theirs.prompts[x] for x in names if x in theirs.prompts), theirs.prompt)
        key = f"{side}_prompt"
        if text and text != own.get(names[0], "") and not (follows and text == query):
            yield _titled(f"{side} prompt", f"task.{key}" if has_keys else "", shown(text))
        query = query or text
    known = {QUERY, *PASSAGES, theirs.default_prompt}
    if others := [x for x, text in theirs.prompts.items() if text and x not in known]:
        yield f"prompts of other names ({shown(others)[1:-1]})"


def _loss_of_vectors(config: Config) -> VectorLoss | None:
    head = config.model.head if isinstance(config.model, TaskModelConfig) else None
    return head.vectors.loss if head and head.vectors else None


def _limits(theirs: SentenceEncoder, config: Config) -> Iterator[str]:
    """Yields the length of texts and of vectors, and how these are compared, of a run that trains
    vectors."""
    if (ours := encoder_of_run(config)) is None:
        return
    longest = min(theirs.max_length or 0, config.model.max_position_embeddings)
    if longest and longest != ours.max_length:
        yield _titled(f"texts of {longest:,} tokens", "phases[0].seq_length", longest)
    if theirs.dimensions:
        yield f"vectors cut to {count(theirs.dimensions, 'number')}"
    if theirs.similarity not in (None, ours.similarity):
        yield f"similarity {shown(theirs.similarity)}"


def _titled(title: str, key: str, value: Any) -> str:
    """Returns a title with the key that sets it, if there is one."""
    return f"{title} (config.{key}={value})" if key else title
