"""The model card: README.md of an exported folder, with recorded facts only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.config.schema import ModelConfig
from bert_jax.objectives.architectures import Architecture, find_architecture
from bert_jax.objectives.objective import Objective
from bert_jax.objectives.registry import BERT_FOR_PRETRAINING, find

_USE = """## Use

```python
from transformers import AutoTokenizer, {name}

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = {name}.from_pretrained("path/to/this/folder")
```

or in JAX, without transformers: `bert_jax.load("path/to/this/folder")`. """
_LICENCE = """## Licence

Not stated. Before publishing this model, fill in the `license` field at the top of this file, with
regard to the licences of the text it was trained on."""


@dataclass(frozen=True)
class Card:
    """The facts about a run that the card lists."""

    step: int | None = None  # updates of the parameters
    objectives: tuple[str, ...] = BERT_FOR_PRETRAINING
    settings: Mapping[str, Any] | None = None  # by path, from `serialization.flatten`
    sources: Sequence[Mapping[str, Any]] = ()  # of the store's manifest; empty if not available
    languages: Sequence[str] = ()  # codes, of the store
    metrics: Mapping[str, float] | None = None  # held-out, as in metrics.jsonl, if recorded
    metrics_step: int | None = None


def render(card: Card, config: ModelConfig, *, parameters: int, lowercase: bool) -> str:
    """Returns the text of README.md; `parameters` counts the tied decoder once."""
    learned, form = find(card.objectives), find_architecture(config)
    heads = f"{config.num_attention_heads} heads"
    trained = "" if card.step is None else f", trained for {card.step:,} steps"
    sections = [
        _front_matter(card, form),
        f"# BERT, {config.num_hidden_layers} layers, {config.hidden_size} wide\n\n"
        f"A BERT encoder with {_heads(learned, form)}{trained}, written "
        "by [bert-jax] `convert export`.\n\n"
        f"- {parameters:,} parameters: {config.num_hidden_layers} layers, {heads}, hidden size "
        f"{config.hidden_size}, feed-forward size {config.intermediate_size}\n"
        f"- {config.vocab_size:,} vocabulary entries, "
        f"{'lower-cased, accents stripped' if lowercase else 'cased'}\n"
        f"- sequences of at most {config.max_position_embeddings} tokens",
        _use(learned, form),
        _data(card.sources),
        _metrics(card),
        _training(card),
        _LICENCE,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _exported(objective: Objective, form: Architecture) -> bool:
    return bool(objective.tensors) and (form.pairs or not objective.needs_pooler)


def _heads(learned: Sequence[Objective], form: Architecture) -> str:
    titles = [objective.head_title for objective in learned if _exported(objective, form)]
    if not titles:
        return "no head"
    return f"its {' and '.join(titles)} head{'s' if len(titles) > 1 else ''}"


def _use(learned: Sequence[Objective], form: Architecture) -> str:
    name = form.class_name([objective.head for objective in learned])
    pairs = [objective for objective in learned if objective.needs_pooler]
    facts = [] if pairs else ["The model has no pooler: no objective trained one."]
    if pairs and not form.pairs:
        lost = f"the pooler and the {pairs[0].head_title} head"
        facts = [f"Without {lost} it was trained with: {name} has neither."]
    facts += [o.card for o in learned if o.card and _exported(o, form)]
    omitted = [objective.card for objective in learned if objective.card and not objective.tensors]
    lines = _USE.format(name=name) + " ".join(facts)
    return "\n".join([lines, *omitted])


def _front_matter(card: Card, form: Architecture) -> str:
    lines = ["---", "library_name: transformers", "pipeline_tag: fill-mask", "tags:"]
    lines.append(f"- {form.model_type}")
    if card.languages:
        lines += ["language:", *(f"- {language}" for language in card.languages)]
    lines += ["# license: not stated; fill this in before publishing", "---"]
    return "\n".join(lines)


def _data(sources: Sequence[Mapping[str, Any]]) -> str:
    if not sources:
        return (
            "## Training text\n\nThe token store was not available when this folder was written, "
            "so its contents are not listed. Describe the text here before publishing."
        )
    rows = ["| source | kind | documents | sentences | tokens |", "|---|---|---:|---:|---:|"]
    for source in sources:
        # A store that was not built from files has only the names of its sources.
        train = source.get("splits", {}).get("train", {})
        units = ("documents", "sentences", "tokens")
        counts = (f"{train[unit]:,}" if unit in train else "" for unit in units)
        rows.append(f"| {source['name']} | {source.get('kind', '')} | {' | '.join(counts)} |")
    return "## Training text\n\n" + "\n".join(rows)


def _metrics(card: Card) -> str:
    if not card.metrics:
        return ""
    rows = ["| metric | value |", "|---|---:|"]
    rows += [f"| {name} | {value:.4f} |" for name, value in sorted(card.metrics.items())]
    return (
        f"## Held-out metrics\n\nOn documents held out from training, at step "
        f"{card.metrics_step:,}. Losses are in nats; a `baseline` predicts the most frequent "
        "answer, a `source` metric the most frequent answer for the text's source.\n\n"
        + "\n".join(rows)
    )


def _training(card: Card) -> str:
    if not card.settings:
        return ""
    lines = "\n".join(f"{key} = {value}" for key, value in card.settings.items())
    listing = f"<summary>All settings</summary>\n\n```\n{lines}\n```\n\n"
    return f"## Training\n\n<details>{listing}</details>"
