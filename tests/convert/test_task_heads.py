"""Models with the head of a task: written, read, compared, continued and refused, in any layout."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from layout_models import EVERY, LABELS, LAYOUTS, PREFIXES, TASKS, task_config, task_params

import bert_jax
from bert_jax import cli
from bert_jax.convert import weights
from bert_jax.convert.hf_config import from_config_json, to_config_json
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

CLASSIFIER, CHOICE = "single_label_classification", "multiple_choice"
OLDER = [layout for layout in LAYOUTS if layout != "modernbert"]


def write(out: Path, layout: str, task: str, tokenizer) -> Path:
    config = task_config(layout, task, vocab_size=tokenizer.vocab_size, num_hidden_layers=1)
    export(task_params(config), config, tokenizer, out, card=Card(objectives=(task,)))
    return out


def state_of(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def run(source: Path, out: Path) -> int:
    return cli.main(["convert", "import", f"--from={source}", f"--out={out}"])


@pytest.mark.parametrize(("layout", "task"), EVERY)
def test_there_and_back_is_bit_exact(layout, task):
    config = task_config(layout, task)
    params = task_params(config)
    tensors = weights.to_transformers(params, config, pad_token_id=1)
    assert weights.leftover(tensors, config) == weights.unread(tensors, config) == []
    back = weights.from_transformers(tensors, config, pad_token_id=1)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    values = json.loads(json.dumps(to_config_json(config, pad_token_id=1, heads=params)))
    assert values["architectures"] == [f"{PREFIXES[layout]}{TASKS[task][-1]}"]
    assert from_config_json(values, "config.json") == config


@pytest.mark.parametrize(
    ("layout", "task", "names"),
    [
        ("bert", CLASSIFIER, ["classifier.{}", "bert.pooler.dense.{}"]),
        ("roberta", CLASSIFIER, ["classifier.dense.{}", "classifier.out_proj.{}"]),
        ("distilbert", CLASSIFIER, ["pre_classifier.{}", "classifier.{}"]),
        ("roformer", CLASSIFIER, ["classifier.dense.{}", "classifier.out_proj.{}"]),
        ("roberta-prelayernorm", CLASSIFIER, ["classifier.dense.{}", "classifier.out_proj.{}"]),
        *((layout, "token_classification", ["classifier.{}"]) for layout in OLDER),
        *((layout, "question_answering", ["qa_outputs.{}"]) for layout in OLDER),
        ("bert", CHOICE, ["classifier.{}", "bert.pooler.dense.{}"]),
        ("roberta", CHOICE, ["classifier.{}", "roberta.pooler.dense.{}"]),
        ("distilbert", CHOICE, ["pre_classifier.{}", "classifier.{}"]),
        *(("albert", task, ["classifier.{}", "albert.pooler.{}"]) for task in (CLASSIFIER, CHOICE)),
        ("electra", CLASSIFIER, ["classifier.dense.{}", "classifier.out_proj.{}"]),
        ("electra", CHOICE, ["sequence_summary.summary.{}", "classifier.{}"]),
        *(("modernbert", task, ["head.{}.weight", "classifier.{}"]) for task in TASKS),
    ],
)
def test_a_head_has_the_names_of_its_class(layout, task, names):
    config = task_config(layout, task)
    tensors = weights.to_transformers(task_params(config), config)
    parts = (
        "embeddings", "embeddings_project", "encoder", "transformer", "LayerNorm", "layers",
        "final_norm",
    )  # fmt: skip
    base = {"modernbert": "model"}.get(layout, layout.replace("-", "_"))
    encoder = tuple(f"{base}.{part}." for part in parts)
    heads = {name for name in tensors if not name.startswith(encoder)}
    last = {"head.{}.weight": ("dense", "norm")}
    kinds = ("weight", "bias")
    assert heads == {name.format(kind) for name in names for kind in last.get(name, kinds)}


@pytest.mark.parametrize("task", [CLASSIFIER, "token_classification", "question_answering"])
def test_an_imported_folder_is_the_same_and_says_what_it_is(task, tokenizer, tmp_path, capsys):
    source = write(tmp_path / "source", "distilbert", task, tokenizer)
    assert run(source, tmp_path / "out") == DONE
    title = f"{TASKS[task][-1].removeprefix('For')}"
    first, second = state_of(source), state_of(tmp_path / "out")
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        np.testing.assert_array_equal(second[name], tensor, err_msg=name)
    settings = [json.loads((f / "config.json").read_text()) for f in (source, tmp_path / "out")]
    assert settings[0] == settings[1]
    card = (tmp_path / "out/README.md").read_text()
    assert f"model = DistilBert{TASKS[task][-1]}.from_pretrained" in card
    assert (
        "pipeline_tag: " + {"Seq": "text-", "Tok": "token-", "Que": "question-"}[title[:3]] in card
    )
    said = capsys.readouterr().out
    assert "imported to" in said
    assert f"out: encoder, {'-'.join(_words(title))} head\n" in said
    assert not [line for line in said.splitlines() if "left out" in line]


def _words(name: str) -> list[str]:
    """SequenceClassification -> sequence, classification."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).split()


def test_a_head_reads_as_many_tokens_as_the_longest_text_it_was_trained_on(tokenizer, tmp_path):
    """An export says how many; the positions behind were never trained."""
    config = task_config("bert", CLASSIFIER, vocab_size=tokenizer.vocab_size)
    params, most = task_params(config), config.max_position_embeddings
    found = {}
    for length in (8, None):
        card, folder = Card(objectives=(CLASSIFIER,), length=length), tmp_path / str(length)
        export(params, config, tokenizer, folder, card=card)
        model = bert_jax.load(folder)
        found[length] = [model.predict("a " * size)[0].probability for size in (6, 7, 2 * most)]
    assert found[8][0] == found[8][1] == found[8][2] == found[None][0]
    assert len({*found[None]}) == 3


def test_settings_of_a_head_stay_as_they_are(tokenizer, tmp_path):
    source = write(tmp_path / "source", "roberta", CLASSIFIER, tokenizer)
    (source / "SHA256SUMS").unlink()
    values = json.loads((source / "config.json").read_text())
    values |= {
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaForSequenceClassification"],
        "label2id": {"NEGATIVE": 0, "positive": 2},  # need not agree with id2label
        "classifier_dropout": 0.3,
        "problem_type": "single_label_classification",
        "finetuning_task": "sentiment",
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    (source / "config.json").write_text(json.dumps(values))
    assert run(source, tmp_path / "out") == DONE
    assert json.loads((tmp_path / "out/config.json").read_text()) == values
    card = (tmp_path / "out/README.md").read_text()
    assert "XLMRobertaForSequenceClassification.from_pretrained" in card
    assert "- xlm-roberta\n" in card
    head = from_config_json(values, "config.json").head
    assert (head.labels, head.dropout, head.problem_type) == (LABELS, 0.3, values["problem_type"])


@pytest.mark.parametrize("names", [None, {"0": "no", "1": "yes"}])
def test_num_labels_counts_where_the_names_are_of_another_number(names, tokenizer, tmp_path):
    """As transformers reads it; older releases wrote such files."""
    source = write(tmp_path / "source", "bert", CLASSIFIER, tokenizer)
    (source / "SHA256SUMS").unlink()
    values = json.loads((source / "config.json").read_text())
    values |= {"num_labels": len(LABELS), "id2label": names}
    (source / "config.json").write_text(json.dumps(values))
    assert run(source, tmp_path / "out") == DONE
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["id2label"] == {str(i): f"LABEL_{i}" for i in range(len(LABELS))}
    assert written["label2id"] == {f"LABEL_{i}": i for i in range(len(LABELS))}


@pytest.mark.parametrize(
    ("layout", "task", "values", "rate"),
    [
        ("bert", CLASSIFIER, {"hidden_dropout_prob": 0.25}, 0.25),
        ("bert", CLASSIFIER, {"classifier_dropout": None, "hidden_dropout_prob": 0.3}, 0.3),
        ("bert", "token_classification", {"classifier_dropout": 0.5}, 0.5),
        ("bert", "question_answering", {"classifier_dropout": 0.5}, 0.0),
        ("roformer", CLASSIFIER, {"classifier_dropout": 0.5, "hidden_dropout_prob": 0.1}, 0.1),
        ("distilbert", CLASSIFIER, {}, 0.2),
        ("distilbert", CLASSIFIER, {"seq_classif_dropout": 0.4, "qa_dropout": 0.3}, 0.4),
        ("distilbert", "token_classification", {"dropout": 0.15}, 0.15),
        ("distilbert", "question_answering", {}, 0.1),
        ("bert", CHOICE, {"classifier_dropout": 0.5}, 0.5),
        ("roberta", CHOICE, {"classifier_dropout": 0.5, "hidden_dropout_prob": 0.1}, 0.1),
        ("distilbert", CHOICE, {"seq_classif_dropout": 0.4}, 0.4),
    ],
)
def test_the_dropout_of_a_head_is_that_of_transformers(layout, task, values, rate):
    config = task_config(layout, task)
    written = to_config_json(config, pad_token_id=0, heads={config.head.name})
    for key in ("classifier_dropout", "seq_classif_dropout", "qa_dropout"):
        written.pop(key, None)
    assert from_config_json(written | values, "config.json").head.dropout == rate


def test_a_head_that_no_class_computes_is_one_line():
    with pytest.raises(UserError, match=r"no class of transformers for RoFormer has the multiple"):
        task_config("roformer", CHOICE)


def test_two_labels_need_no_names():
    values = to_config_json(task_config("bert", CLASSIFIER), pad_token_id=0, heads={"classifier"})
    del values["id2label"], values["label2id"]
    assert from_config_json(values, "c").head.labels == ("LABEL_0", "LABEL_1")
    assert len(from_config_json(values | {"num_labels": 5}, "c").head.labels) == 5


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        (CLASSIFIER, {"id2label": {"0": "a", "2": "b"}}, "id2label=.* should name the labels from"),
        (CLASSIFIER, {"id2label": ["a"]}, "id2label=.* should name the labels"),
        (CLASSIFIER, {"id2label": {}}, "id2label=.* should name the labels"),
        (CLASSIFIER, {"id2label": None, "num_labels": 10**9}, "num_labels=1000000000 should be"),
        (CLASSIFIER, {"problem_type": "ranking"}, "problem_type='ranking'.*regression"),
        (CLASSIFIER, {"problem_type": ["regression"]}, "problem_type="),
        (CLASSIFIER, {"classifier_dropout": 1.5}, "classifier_dropout=1.5 should be from 0 to 1"),
        ("question_answering", {"id2label": {"0": "a"}}, "1 label, but a question-answering"),
    ],
)
def test_settings_that_mean_nothing_are_one_line(task, change, message):
    config = task_config("bert", task)
    values = to_config_json(config, pad_token_id=0, heads={config.head.name}) | change
    with pytest.raises(UserError, match=f"^config.json: {message}") as error:
        from_config_json(values, "config.json")
    assert "\n" not in str(error.value)


def set_config(**changes: object):
    def damage(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values | changes))

    return damage


def set_tensors(change):
    def damage(folder: Path) -> None:
        safetensors.numpy.save_file(change(state_of(folder)), folder / "model.safetensors")

    return damage


def without(*names: str):
    return set_tensors(lambda t: {name: x for name, x in t.items() if name not in names})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("classifier.weight"), "the weights have no classifier.weight"),
        (without("classifier.weight", "classifier.bias"), "the weights have no classifier.weight"),
        (without("bert.pooler.dense.bias"), "the weights have no bert.pooler.dense.bias"),
        (
            set_config(id2label={"0": "a", "1": "b"}),
            "classifier.weight has shape [3, 32], config.json requires [2, 32]",
        ),
        (
            set_tensors(lambda t: t | {"cls.predictions.bias": t["classifier.bias"]}),
            "no parameter for cls.predictions.bias in a 'BertForSequenceClassification'; nothing",
        ),
        (
            set_config(architectures=["BertForMultipleChoice"]),
            "classifier.weight has shape [3, 32], config.json requires [1, 32]",
        ),
        (
            set_config(architectures=["BertForMaskedLM"]),
            "no parameter for classifier.bias and 1 more",
        ),
        (set_config(architectures=None), "no parameter for classifier.bias and 1 more; nothing"),
        (
            set_config(architectures=[7]),
            "no parameter for classifier.bias and 1 more in a 7; nothing",
        ),
    ],
)
def test_a_head_that_is_not_whole_is_one_line(damage, message, tokenizer, tmp_path, capsys):
    folder = write(tmp_path / "folder", "bert", CLASSIFIER, tokenizer)
    (folder / "SHA256SUMS").unlink()
    damage(folder)
    assert run(folder, tmp_path / "out") == FAILED
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_task_model_computes_vectors_and_fills_nothing(tokenizer, tmp_path):
    folder = write(tmp_path / "folder", "bert", CLASSIFIER, tokenizer)
    model = bert_jax.load(folder)
    assert model.encode("hello", pooling="pooled").shape == (1, 32)
    with pytest.raises(UserError, match="without its masked-language-model head"):
        model.fill_mask("hello [MASK]")
    answers = bert_jax.load(write(tmp_path / "qa", "bert", "question_answering", tokenizer))
    with pytest.raises(UserError, match="without its pooler"):
        answers.encode("hello", pooling="pooled")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "tensor", "title"),
    [
        (CLASSIFIER, "classifier.bias", "sequence-classification head"),
        ("token_classification", "classifier.bias", "token-classification head"),
        ("question_answering", "qa_outputs.bias", "question-answering head"),
        (CHOICE, "classifier.bias", "multiple-choice head"),
    ],
)
def test_verify_compares_the_head(task, tensor, title, tokenizer, tmp_path, capsys):
    folder = write(tmp_path / "one", "bert", task, tokenizer)
    shutil.copytree(folder, tmp_path / "other")
    assert cli.main(["convert", "verify", str(folder), str(tmp_path / "other")]) == DONE
    assert f"         0  {title}\n" in capsys.readouterr().out
    (tmp_path / "other/SHA256SUMS").unlink()
    set_tensors(lambda t: t | {tensor: t[tensor] + 0.5})(tmp_path / "other")
    assert cli.main(["convert", "verify", str(folder), str(tmp_path / "other")]) == FAILED
    assert f"differs in the {title}: " in capsys.readouterr().out.splitlines()[-1]


def test_other_labels_are_another_architecture(tokenizer, tmp_path, capsys):
    names = write(tmp_path / "one", "bert", CLASSIFIER, tokenizer)
    score = write(tmp_path / "two", "bert", "regression", tokenizer)
    assert cli.main(["convert", "verify", str(names), str(score)]) == FAILED
    line = capsys.readouterr().err
    assert "architecture (labels of the sequence-classification head 3 and 1); give" in line
    assert line.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("task", [CLASSIFIER, "token_classification", "question_answering"])
def test_a_padding_token_in_a_text_is_refused_where_it_is_not_counted(task, tokenizer, tmp_path):
    texts = ["hello", "a [PAD] b"]
    ask = {
        CLASSIFIER: lambda model: model.predict(texts),
        "token_classification": lambda model: model.tag([text.split() for text in texts]),
        "question_answering": lambda model: model.answer([(text, "hello") for text in texts]),
    }[task]
    model = bert_jax.load(write(tmp_path / "roberta", "roberta", task, tokenizer))
    with pytest.raises(UserError, match=r"\[PAD\] in a text has a position of its own in RoBERTa"):
        ask(model)
    ask(bert_jax.load(write(tmp_path / "bert", "bert", task, tokenizer)))
