"""The model card: README.md of an exported folder, with recorded facts only."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_jax.config.schema import ModelConfig
from bert_jax.convert.layouts.known_layouts import find_layout
from bert_jax.convert.run_encoder import PASSAGES, QUERY
from bert_jax.convert.sentence_encoder import SentenceEncoder
from bert_jax.errors import count
from bert_jax.objectives.known_objectives import BERT_FOR_PRETRAINING, find
from bert_jax.objectives.objective import Objective
from bert_jax.publish import task_card
from bert_jax.publish.side_heads import other_heads
from bert_jax.publish.task_card import TaskFacts
from bert_jax.reporting import held_out_table
from bert_jax.reporting.markdown import table
from bert_jax.storage.remote import HUB

_USE = """## Use

```python
from transformers import AutoTokenizer, {name}

tokenizer = AutoTokenizer.from_pretrained({place})
model = {name}.from_pretrained({place})
```

or in JAX, without transformers: `bert_jax.load("{ours}")`. """
_USE_VECTORS = """## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({place})
{calls}
```

or in JAX, without sentence-transformers: `bert_jax.load("{ours}").encode(texts{more})`. """
_TEXT = "A sentence."
_LICENCE = """## Licence

Not stated. Before publishing this model, fill in the `license` field at the top of this file, with
regard to the licences of the text it was trained on."""


@dataclass(frozen=True)
class Card:
    """The facts about a run that the card lists."""

    origin: str = ""  # of an imported model
    step: int | None = None  # updates of the parameters
    length: int | None = None  # tokens of the longest sequences in training
    form: Mapping[str, Any] = field(default_factory=dict)  # `EvalSetting.settings` of a run
    objectives: tuple[str, ...] = BERT_FOR_PRETRAINING
    training: Mapping[str, str] = field(default_factory=dict)  # name -> text, such as "devices"
    settings: Mapping[str, Any] | None = None  # by path, from `serialization.flatten`
    sources: Sequence[Mapping[str, Any]] = ()  # of the store's manifest; empty if not available
    datasets: Sequence[tuple[str, str]] = ()  # on the Hugging Face hub: OWNER/NAME, commit
    languages: Sequence[str] = ()  # codes, of the store
    metrics: Mapping[str, Any] | None = None  # the record of an evaluation, if there is one
    task: TaskFacts | None = None  # of a fine-tuned model
    repository: str = ""  # on the Hugging Face hub, that the folder is for
    revision: str = ""  # of the repository; "" is its main branch
    sentence: SentenceEncoder | None = None  # what makes vectors of texts, if the run trained them


def render(
    card: Card, config: ModelConfig, *, parameters: int, lowercase: bool, model_type: str = ""
) -> str:
    """Returns the text of README.md.

    Args:
        parameters: counts the tied decoder once.
        model_type: of an imported model; "" for that of the layout.
    """
    learned, layout = find(card.objectives), find_layout(config)
    name = layout.class_name([objective.head for objective in learned], model_type)
    layers = count(config.num_hidden_layers, "layer")
    heads = count(config.num_attention_heads, "head")
    trained = "" if card.step is None else f", trained for {count(card.step, 'step')}"
    trained += f" on the task `{card.task.name}`" if card.task else ""
    made_by = card.sentence.titles if card.sentence else _heads(learned)
    sections = [
        _front_matter(card, model_type or layout.model_type, learned),
        f"# BERT, {layers}, {config.hidden_size} wide\n\n"
        f"A BERT encoder with {made_by}{trained}, {_written(card)}.\n\n"
        f"- {parameters:,} parameters: {layers}, {heads}, hidden size "
        f"{config.hidden_size}, feed-forward size {config.intermediate_size}\n"
        f"- {config.vocab_size:,} vocabulary entries, "
        f"{'lower-cased, accents stripped' if lowercase else 'cased'}\n"
        f"- {_length(card.length, config)}",
        _use(card, learned, config, name),
        other_heads(learned, config, layout, name),
        "\n\n".join([task_card.data_section(card.task), *_datasets(card)])
        if card.task
        else _data(card),
        task_card.metrics_section(card.metrics) if card.task else _metrics(card.metrics),
        _training(card),
        _LICENCE,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _length(trained: int | None, config: ModelConfig) -> str:
    """States the length of the sequences the model is for."""
    positions = config.max_position_embeddings
    length = trained or positions
    text = f"sequences of at most {length} tokens, special tokens included"
    if length < positions and config.position == "learned":
        text += f"; the other {positions - length} of its {positions} positions are not trained"
    return text


def _heads(learned: Sequence[Objective]) -> str:
    titles = [objective.head_title for objective in learned]
    if not titles:
        return "no head"
    return f"its {' and '.join(titles)} head{'s' if len(titles) > 1 else ''}"


def _use(card: Card, learned: Sequence[Objective], config: ModelConfig, name: str) -> str:
    facts = []
    place = ours = "path/to/this/folder"
    branch = ""
    if card.repository:
        place, ours = card.repository, f"{HUB}{card.repository}"
        if card.revision:
            branch, ours = f', revision="{card.revision}"', f"{ours}@{card.revision}"
    places = {"place": f'"{place}"{branch}', "ours": ours}
    if card.sentence:
        calls, more = _calls(card.sentence)
        return _USE_VECTORS.format(**places, calls=calls, more=more).rstrip()
    if not card.origin and not any(objective.needs_pooler(config) for objective in learned):
        facts = ["The model has no pooler: no objective trained one."]
    facts += [objective.card for objective in learned if objective.card]
    return _USE.format(name=name, **places) + " ".join(facts)


def _calls(sentence: SentenceEncoder) -> tuple[str, str]:
    """Returns the lines that make vectors, each with the text that is read where it has a prompt,
    and the further argument of a call."""
    if not sentence.prompts or sentence.default_prompt is not None:
        read = f"  # of {_quoted(sentence.prompt + _TEXT)}, …" * bool(sentence.prompt)
        return f'vectors = model.encode(["{_TEXT}", "Another one."]){read}', ""
    lines = []
    for several, name in (("queries", QUERY), ("passages", PASSAGES[0])):
        prompt, call = sentence.prompts.get(name), f'{several} = model.encode(["{_TEXT}"'
        read = f', prompt_name="{name}")  # of {_quoted(prompt + _TEXT)}' if prompt else ")"
        lines.append(f"{call}]{read}")
    return "\n".join(lines), ", prompt_name=…"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _front_matter(card: Card, model_type: str, learned: Sequence[Objective]) -> str:
    pipeline = next((o.pipeline for o in learned if o.pipeline), "feature-extraction")
    library = "transformers"
    if card.sentence:
        pipeline, library = "sentence-similarity", "sentence-transformers"
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {pipeline}", "tags:"]
    lines += [f"- {model_type}", "- bert-jax"]
    if card.languages:
        # YAML reads an unquoted "no", Norwegian, as false.
        quoted = ("'no'" if language == "no" else language for language in card.languages)
        lines += ["language:", *(f"- {language}" for language in quoted)]
    if card.datasets:
        lines += [
            "datasets:",
            *(f"- {name}" for name in dict.fromkeys(n for n, _ in card.datasets)),
        ]
    lines += ["# license: not stated; fill this in before publishing", "---"]
    return "\n".join(lines)


def _written(card: Card) -> str:
    if card.origin:
        return f"imported from `{card.origin}` by `bert-jax convert import`"
    return "written by `bert-jax convert export`"


def _data(card: Card) -> str:
    if card.origin:
        return "## Training text\n\nSee the description of the model that was imported."
    if not card.sources:
        return (
            "## Training text\n\nThe token store was not available when this folder was written, "
            "so its contents are not listed. Describe the text here before publishing."
        )
    rows = []
    for source in card.sources:
        # A store that was not built from files has only the names of its sources.
        train = source.get("splits", {}).get("train", {})
        units = ("documents", "sentences", "tokens")
        counts = (f"{train[unit]:,}" if unit in train else "" for unit in units)
        rows.append((source["name"], source.get("kind", ""), *counts))
    header = ("source", "kind", "documents", "sentences", "tokens")
    return "\n\n".join(["## Training text", table(header, rows, names=2), *_datasets(card)])


def _datasets(card: Card) -> list[str]:
    """Returns a line for each dataset of the Hugging Face hub."""
    return [
        f"[{name}](https://huggingface.co/datasets/{name}) of the Hugging Face hub, at the commit "
        f"`{commit}`."
        for name, commit in card.datasets
    ]


def _metrics(record: Mapping[str, Any] | None) -> str:
    header, rows = held_out_table.table(record or {})
    if not record or not rows:
        return ""
    return (
        f"## Held-out metrics\n\nOn documents held out from training, at step {record['step']:,}. "
        f"{held_out_table.explanation(record)}\n\n{table(header, rows, names=1)}"
    )


def _training(card: Card) -> str:
    parts = []
    if card.training:
        parts.append(table(("", ""), card.training.items(), names=2))
    if card.settings:
        lines = "\n".join(f"{key} = {value}" for key, value in card.settings.items())
        listing = f"<summary>All settings</summary>\n\n```\n{lines}\n```\n\n"
        parts.append(f"<details>{listing}</details>")
    return "\n\n".join(["## Training", *parts]) if parts else ""
