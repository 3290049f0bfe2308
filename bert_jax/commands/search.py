"""`bert-jax search`: the nearest texts of a corpus; hard negatives for training."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, need
from bert_jax.commands.embed import define_vectors
from bert_jax.commands.kinds import hard_negatives
from bert_jax.commands.paths import define_input, define_output, define_overwrite, model_paths
from bert_jax.errors import UsageError

if TYPE_CHECKING:
    from bert_jax.api.corpus_search import Hit

_OF_NEGATIVES = ("pairs", "negatives_per_pair", "skip")
_OF_QUERIES = ("input", "top_k", "json")


def _define_search(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(values, "vectors", "file of vectors that embed wrote, .npy")
    define_input(values, "texts", "file with the text of each vector on a line")
    model = "folder of the model that embedded them, or hf:OWNER/NAME, for the queries"
    define_input(values, "model", model, locate=model_paths)
    define_input(values, "input", "file with a query on every line, in place of QUERY...")
    top_k = "number of texts for each query"
    flags.DEFINE_integer("top_k", 10, top_k, 1, flag_values=values)
    define_vectors(values, "over the tokens of a query, as embed had (default: the same)")
    prompt = "name of the folder's prompt for queries (default: query, or its default one)"
    flags.DEFINE_string("prompt", None, prompt, flag_values=values)
    similarity = "how vectors are compared (default: as the model's folder says, or cosine)"
    flags.DEFINE_enum("similarity", None, ["cosine", "dot"], similarity, flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object a query", flag_values=values)
    table = "table to write, .tsv, .csv or .jsonl: --pairs with negatives from the texts"
    define_output(values, "hard_negatives", table, hard_negatives)
    define_input(values, "pairs", "table of the columns anchor and positive, for --hard_negatives")
    each = "number of negatives of a pair"
    flags.DEFINE_integer("negatives_per_pair", 1, each, 1, flag_values=values)
    skip = "nearest texts of an anchor that are no negatives"
    flags.DEFINE_integer("skip", 0, skip, 0, flag_values=values)
    define_overwrite(values)
    define_cpu_devices(values)


def _run_search(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "vectors", "model")
    for_pairs = values.hard_negatives is not None
    others = _OF_QUERIES if for_pairs else _OF_NEGATIVES
    if given := [name for name in others if values[name].present]:
        which = "not for --hard_negatives" if for_pairs else "only for --hard_negatives"
        raise UsageError(f"--{given[0]} is {which}; leave it out")
    if for_pairs:
        need(values, "texts", "pairs")
        if words:
            raise UsageError(f"{words[0]!r}: --hard_negatives takes queries from --pairs alone")
    elif bool(words) == bool(values.input):
        raise UsageError("give one or more queries, or a file of them as --input")
    from bert_jax.runtime import compile_cache, cpu

    cpu.use_cpu_devices(values.cpu_devices)
    compile_cache.use()
    from bert_jax.api.corpus_search import SearchSettings, open_corpus, search
    from bert_jax.api.hard_negatives import write_hard_negatives
    from bert_jax.api.model import load
    from bert_jax.finetune.tasks.class_names import is_blank
    from bert_jax.finetune.tasks.rows import numbered_lines, wrong_row
    from bert_jax.runtime.console import console
    from bert_jax.storage.read_files import local_path

    names = [field.name for field in dataclasses.fields(SearchSettings)]
    settings = SearchSettings(**{name: values[name].value for name in names})
    texts = local_path(values.texts) if values.texts else None
    corpus = open_corpus(local_path(values.vectors), texts)
    if for_pairs:
        made = write_hard_negatives(
            load(values.model), corpus, local_path(values.pairs), Path(values.hard_negatives),
            settings, per_pair=values.negatives_per_pair, skip=values.skip,
            overwrite=values.overwrite,
        )  # fmt: skip
        console.print(made)
        return
    queries = list(words)
    for row, line in numbered_lines(values.input) if values.input else ():
        if is_blank(line):
            wrong_row(values.input, row, "an empty query; delete the line")
        queries.append(line.rstrip("\n"))
    for query, hits in zip(
        queries, search(load(values.model), corpus, queries, values.top_k, settings), strict=True
    ):
        if values.json:
            print(json.dumps(as_dict(query, hits)))
        else:
            console.print(as_text(hits, query if len(queries) > 1 else ""))


def as_dict(query: str, hits: "Sequence[Hit]") -> dict[str, Any]:
    """Returns a query with its hits, for JSON."""
    return {
        "query": query,
        "hits": [
            {name: value for name, value in dataclasses.asdict(hit).items() if value is not None}
            for hit in hits
        ],
    }


def as_text(hits: "Sequence[Hit]", query: str = "") -> str:
    """Returns the score, the row and the text of each hit on a line, below the query if it is
    given."""
    width = max(len(str(hit.row)) for hit in hits)
    indent = "  " if query else ""
    lines = [f"{indent}{hit.score:7.4f}  {hit.row:{width}}  {hit.text or ''}" for hit in hits]
    return "\n".join([*([query] if query else []), *(line.rstrip() for line in lines)])


COMMANDS = {
    "search": Command(
        "find the nearest texts of a corpus; write hard negatives",
        "bert-jax search --vectors=corpus.npy --texts=corpus.txt --model=exported "
        '"how do I sail home?"',
        _define_search,
        _run_search,
        arguments=" QUERY...",
    ),
}
