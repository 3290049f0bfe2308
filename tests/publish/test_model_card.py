"""The model card as the hub reads it, and the length that a run trained."""

import dataclasses
import json
from pathlib import Path

import pytest
from exported import make_run, random_params
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from small import model_config, run_config
from small_task import task_config

from bert_jax.config.recorded import recorded
from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.config.task_model import HeadConfig, VectorConfig, VectorLoss, with_head
from bert_jax.config.task_settings import TaskConfig
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.publish.export import export, run_export
from bert_jax.publish.import_model import run_import
from bert_jax.publish.model_card import Card, render
from bert_jax.publish.task_card import TaskFacts, data_section
from bert_jax.reporting.run_facts import run_facts, steps_by_phase, tokens_seen, trained_length

PHASES = (
    PhaseConfig(steps=10, seq_length=32, batch_size=4),
    PhaseConfig(
        steps=5, seq_length=40, row_length=96, examples_per_row=4, batch_size=2, max_predictions=5
    ),
    PhaseConfig(steps=5, seq_length=16, batch_size=4, max_predictions=5),
)


@pytest.fixture
def config() -> Config:
    return dataclasses.replace(run_config(), phases=PHASES)


def test_the_schedule_and_the_theta_of_each_phase_are_told(config: Config) -> None:
    optimizer = dataclasses.replace(config.optimizer, schedule_over="phase", warmup_steps=2)
    first = dataclasses.replace(config.phases[0], learning_rate=3e-3, global_rope_theta=1e4)
    second = dataclasses.replace(config.phases[1], learning_rate=5e-5, warmup_steps=0)
    model = dataclasses.replace(config.model, position="rotary")
    run = dataclasses.replace(config, phases=(first, second), optimizer=optimizer, model=model)
    method = run_facts({"config": recorded(run), "data": {}}, 3, [])["method"]
    assert "learning rate 0.003, 2 steps of warmup, then learning rate 5e-05, 0 steps" in method
    assert "; phase 1: global_rope_theta=10000.0" in method


@pytest.mark.parametrize(
    ("step", "length"), [(0, 32), (1, 32), (10, 32), (11, 40), (15, 40), (20, 40)]
)
def test_the_longest_phase_that_was_begun_counts(config: Config, step: int, length: int) -> None:
    assert trained_length(config, step) == length


def test_tokens_are_those_of_each_phase_without_its_padding(config: Config) -> None:
    logged = [
        {"kind": "train", "phase": 0, "padding": 0.5},
        {"kind": "eval", "phase": 0, "padding": 0.9},
        {"kind": "train", "phase": 1, "padding": 0.25},
    ]
    assert (
        tokens_seen(config, steps_by_phase(config, 12), logged)
        == 10 * 4 * 32 * 0.5 + 2 * 2 * 96 * 0.75
    )
    assert tokens_seen(config, steps_by_phase(config, 16), logged) is None, (
        "the third phase recorded nothing"
    )


def test_the_trained_length_is_in_every_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Of an export, and of its import."""
    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    export(random_params(config), config, tokenizer, tmp_path / "out", card=Card(length=16))
    run_import(str(tmp_path / "out"), tmp_path / "imported")
    for folder in ("out", "imported"):
        texts = {path.name: path.read_text() for path in (tmp_path / folder).glob("*[nd]")}
        assert json.loads(texts["tokenizer_config.json"])["model_max_length"] == 16
        written = json.loads(texts["config.json"])
        assert written["trained_length"] == 16
        assert written["max_position_embeddings"] == config.max_position_embeddings == 40
        assert "sequences of at most 16 tokens" in texts["README.md"]
        assert "the other 24 of its 40 positions are not trained" in texts["README.md"]


@pytest.mark.parametrize(
    ("form", "length", "text"),
    [
        ({}, 40, "sequences of at most 40 tokens, special tokens included\n"),
        ({"position": "rotary"}, 16, "sequences of at most 16 tokens, special tokens included\n"),
    ],
)
def test_positions_without_training_are_not_counted(form: dict, length: int, text: str) -> None:
    config = dataclasses.replace(model_config(), **form)
    assert text in render(Card(length=length), config, parameters=1, lowercase=True)


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        ({}, "3 epochs"),
        ({"task__epochs": 1.0}, "1 epoch"),
        ({"task__epochs": 0.5}, "0.5 epochs"),
        ({"optimizer__layer_decay": 0.8}, "layer decay 0.8; 3 epochs"),
        ({"optimizer__learning_rate": 5e-4, "optimizer__base_width": 64}, "3 epochs"),  # 32 wide
        (
            {"task__fewest_steps": 2, "task__most_steps": 500},
            "3 epochs, at least 2 steps, at most 500 steps",
        ),
        ({"task__layers": "-4:"}, "on a frozen encoder (concat of layers -4:, mean of the tokens)"),
    ],
)
def test_the_facts_about_a_task_are_its_model_and_its_recipe(changes: dict, method: str) -> None:
    config = task_config(Path("/nowhere"), init="/home/me/model", **changes)
    run = {"config": recorded(config), "data": {"init": "ab" * 32}}
    logged = [{"kind": "train", "phase": 0, "padding": 0.5, "step": 3}]
    facts = run_facts(run, 3, logged)
    assert facts["started from"] == "model, weights abababababab…"
    assert facts["method"].startswith("adamw, learning rate 0.001, ")
    assert facts["method"].endswith(method)
    assert facts["trained"] == "3 steps of 8 examples in rows of 32 tokens"
    assert "tokens seen" not in facts
    assert facts | {"started from": "ORG/NAME"} == run_facts(
        run | {"init_origin": "ORG/NAME"}, 3, logged
    )


@pytest.mark.parametrize(
    ("languages", "datasets"),
    [((), ()), (("en",), ("org/wiki", "org/books")), (("no", "yi"), ())],
)
def test_the_hub_reads_the_card(languages: tuple[str, ...], datasets: tuple[str, ...]) -> None:
    sources = [{"name": "wiki", "kind": "hf"}]
    card = Card(
        languages=languages, sources=sources, datasets=[(name, "ab12") for name in datasets]
    )
    text = render(card, model_config(), parameters=1, lowercase=True)
    assert text.count("at the commit `ab12`") == len(datasets)
    data = ModelCard(text).data.to_dict()
    expected = {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["bert", "bert-jax"],
        "language": list(languages),
        "datasets": list(datasets),
    }
    assert data == {name: value for name, value in expected.items() if value}


def test_the_card_says_what_the_labels_of_sentence_order_mean(tokenizer, tmp_path):
    workdir, _ = make_run(tokenizer, tmp_path, pairing="sop")
    run_export(workdir, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "sentence-order heads" in card
    assert "1 if they are swapped" in " ".join(card.split())
    assert "next-sentence" not in card
    architectures = json.loads((tmp_path / "out/config.json").read_text())["architectures"]
    assert architectures == ["BertForPreTraining"]


@pytest.mark.parametrize(
    ("loss", "prompts", "lines"),
    [
        ("negatives", {}, ['vectors = model.encode(["A sentence.", "Another one."])']),
        (
            "negatives",
            {"query_prompt": "q: ", "passage_prompt": 'p"\n'},
            [
                'queries = model.encode(["A sentence."], prompt_name="query")'
                '  # of "q: A sentence."',
                'passages = model.encode(["A sentence."], prompt_name="passage")'
                '  # of "p\\"\\nA sentence."',
            ],
        ),
        (
            "negatives",
            {"query_prompt": "q: "},
            [
                'queries = model.encode(["A sentence."], prompt_name="query")'
                '  # of "q: A sentence."',
                'passages = model.encode(["A sentence."])',
            ],
        ),
        (
            "cosine",
            {"query_prompt": "q: "},
            ['vectors = model.encode(["A sentence.", "Another one."])  # of "q: A sentence.", …'],
        ),
        (
            "softmax",
            {"query_prompt": "q: ", "passage_prompt": "p: "},
            [
                'queries = model.encode(["A sentence."], prompt_name="query")'
                '  # of "q: A sentence."',
                'passages = model.encode(["A sentence."], prompt_name="passage")'
                '  # of "p: A sentence."',
            ],
        ),
    ],
)
def test_the_card_shows_the_prompts_of_training(
    loss: VectorLoss, prompts: dict[str, str], lines: list[str]
) -> None:
    model = with_head(model_config(), HeadConfig(name="x", vectors=VectorConfig(loss=loss)))
    config = dataclasses.replace(run_config(), model=model, task=TaskConfig(**prompts))
    card = Card(objectives=(), sentence=encoder_of_run(config))
    text = render(card, model_config(), parameters=1, lowercase=True)
    code = text.split("```python\n")[1].split("```")[0].splitlines()
    assert code[-len(lines) :] == lines
    assert ("prompt_name=…" in text) == ("prompt_name" in lines[0])


def test_a_card_without_its_store_says_so(tokenizer, tmp_path):
    workdir, _ = make_run(tokenizer, tmp_path)
    (tmp_path / "store/manifest.json").unlink()
    run_export(workdir, tmp_path / "out")
    assert "was not available" in (tmp_path / "out/README.md").read_text(encoding="utf-8")


def test_labels_and_files_of_any_name_are_shown_as_they_are() -> None:
    split = {"files": ["my|file.tsv"], "digest": "0" * 40, "examples": 3}
    section = data_section(TaskFacts("sst2", ("a|b", "c`d", "`e"), {"training": split}))
    shown = MarkdownIt("commonmark").enable("table").render(section)
    for said in ("<td>my|file.tsv</td>", "<code>a|b</code>", "<code>c`d</code>", "<code>`e</code>"):
        assert said in shown
