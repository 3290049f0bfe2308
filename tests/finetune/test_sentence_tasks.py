"""Tasks of sentence vectors: their files, errors and metrics, and a run from files to a folder."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from small_task import TRAIN, pairs_config, task_config, write_pairs

import bert_jax
from bert_jax import cli
from bert_jax.config.schema import Config
from bert_jax.config.sentence_parts import parse_dense
from bert_jax.config.task_settings import TaskConfig
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.convert.sources import read_model
from bert_jax.errors import UserError
from bert_jax.finetune.check_task import check_task
from bert_jax.finetune.predictor import Predictor
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.task_data import open_task
from bert_jax.finetune.tasks import sentence_metrics
from bert_jax.finetune.tasks.labeled_examples import Example, Examples
from bert_jax.finetune.tasks.task_kinds import KINDS
from bert_jax.parallel.mesh import make_mesh
from bert_jax.workdir.layout import Workdir

PAIRS = "anchor\tpositive\tnegative\nwho\tdal\tbel\nwhy\tgan\tfim\nwho\tdor\tbel\n"
SCORES = "sentence1\tsentence2\tscore\ndal\tbel\t0.5\ndal\tfim\t1\nbel\tfim\t0\n"
LABELS = "sentence1\tsentence2\tlabel\ndal\tbel\tyes\ndal\tfim\tno\nbel\tfim\tno\n"
NUMBERS = SCORES.replace("score", "label")
LABELLED = "anchor\tpositive\t{}\nwho\tdal\t{}\nwhy\tgan\t{}\n"
FILES = {"sentence_pairs": PAIRS, "scored_pairs": SCORES, "labeled_pairs": LABELS}


def read(path: Path, name: str = "sentence_pairs", **changes: object) -> tuple:
    task = TaskConfig(name=name, data=str(path), held_out=str(path), **changes)  # type: ignore
    return KINDS[name].read(task)


@pytest.mark.parametrize("end", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_a_table_of_any_form_has_columns_by_name(tmp_path: Path, end: str) -> None:
    """Negatives are in the order of their numbers, whatever that of their columns."""
    rows = [
        {"negative_2": "z", "n": "1", "anchor": "who", "negative_1": "y", "positive": "x"},
        {"negative_2": "c", "n": "2", "anchor": "why", "negative_1": "b", "positive": "a"},
    ]
    path = tmp_path / f"pairs{end}"
    if end == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    elif end == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        mark = {".tsv": "\t", ".csv": ","}[end]
        lines = [mark.join(rows[0]), *(mark.join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    found, _ = read(path)
    assert [one.texts for one in found.examples] == [("who", "x", "y", "z"), ("why", "a", "b", "c")]


@pytest.mark.parametrize("end", [".tsv", ".jsonl"])
def test_numbers_named_label_are_scores_where_these_are_asked_for(tmp_path: Path, end: str) -> None:
    """As the STS-B of the hub names them."""
    path = tmp_path / f"table{end}"
    rows = [("dal", "bel", 5.0), ("dal", "fim", 3.8), ("bel", "fim", 0)]
    names = ("sentence1", "sentence2", "label")
    if end == ".jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    else:
        lines = ["\t".join(map(str, row)) for row in (names, *rows)]
    path.write_text("\n".join([*lines, ""]))
    scores, held_out = read(path, "scored_pairs", highest_score=5.0)
    assert [one.label for one in scores.examples] == pytest.approx([1, 0.76, 0])
    assert held_out.examples == scores.examples
    assert len(KINDS["scored_pairs"].read_new(TaskConfig(), str(path), "test").examples) == 3
    classes, _ = read(path, "labeled_pairs")
    told = "labels such as '3.8' are classes; if they are scores, set --config.task.name=scored"
    assert told in " ".join(classes.remarks)


@pytest.mark.parametrize("values", [("1", "1.0"), ("yes", "yes"), ("", "")])
def test_labels_that_are_all_the_same_tell_nothing_apart(tmp_path: Path, values: tuple) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(LABELLED.format("label", *values))
    assert [one.texts for one in read(path)[0].examples] == [("who", "dal"), ("why", "gan")]


def test_equal_texts_have_equal_numbers(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("anchor\tpositive\nwho\tdal\nwhy\tdal \ndal\t who\n")
    texts = KINDS["sentence_pairs"].arrays(read(path)[0])["texts"]  # type: ignore[attr-defined]
    assert texts.tolist() == [[1, 2], [3, 2], [2, 1]]


def test_pairs_of_one_positive_are_held_out_together(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("anchor\tpositive\n" + "".join(f"q{i}\tp{i // 3}\n" for i in range(60)))
    kind = KINDS["sentence_pairs"]
    train, held_out = kind.read(TaskConfig(name=kind.name, data=str(path)))
    positives = [{one.texts[1] for one in split.examples} for split in (train, held_out)]
    assert not positives[0] & positives[1]
    assert len(held_out.examples) == 6


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sentence_pairs", PAIRS.replace("\tgan\t", "\t \t"), "row 3: 'positive' is empty; write"),
        ("sentence_pairs", PAIRS.replace("\tbel\nwhy", "\t\nwhy"), "row 2: 'negative' is empty"),
        ("sentence_pairs", PAIRS.replace("positive", "pos"), "no column 'positive'"),
        ("sentence_pairs", PAIRS.replace("negative", "negatve"), "'negatve' is nearly 'negative'"),
        (
            "sentence_pairs",
            PAIRS.replace("negative", "hard_negative"),
            "'hard_negative' is nearly 'negative'",
        ),
        (
            "sentence_pairs",
            PAIRS.replace("negative", "negative_1_text"),
            "'negative_1_text' is nearly 'negative'",
        ),
        (
            "sentence_pairs",
            PAIRS.replace("negative", "positive_2"),
            "column 'positive_2' is not read, as a row has one positive; write a row for each",
        ),
        ("sentence_pairs", PAIRS.replace("negative", "positives"), "'positives' is not read"),
        (
            "sentence_pairs",
            PAIRS.replace("anchor", "Anchor").replace("positive", "Positive"),
            "no column 'anchor'; did you mean Anchor?",
        ),
        (
            "sentence_pairs",
            PAIRS.replace("anchor\tpositive\tnegative", "query\tpos\tneg"),
            "no column 'anchor'; valid: neg, pos, query",
        ),
        ("sentence_pairs", LABELLED.format("label", 1, 0), "row 3: label '0', but each row is le"),
        ("sentence_pairs", LABELLED.format("label", 1, 0), "or scored_pairs if the labels are sc"),
        ("sentence_pairs", LABELLED.format("label", "\u0660", 0), "row 3: label '0', but each row"),
        ("sentence_pairs", LABELLED.format("Score", "0.9", "0.5"), "row 3: Score '0.5', but each"),
        ("sentence_pairs", LABELLED.format("label", "0.0", "0.0"), "row 2: label '0.0', but"),
        ("sentence_pairs", LABELLED.format("score", 0, 0), "--config.task.name=scored_pairs"),
        (
            "sentence_pairs",
            SCORES,
            "its columns sentence1, sentence2, score are those of scored_pairs, not of "
            "sentence_pairs; set --config.task.name=scored_pairs",
        ),
        ("scored_pairs", PAIRS, "its columns anchor, positive are those of sentence_pairs"),
        ("scored_pairs", LABELS, "not of scored_pairs; set --config.task.name=labeled_pairs"),
        (
            "scored_pairs",
            NUMBERS.replace("0.5", "n/a"),
            "row 2: score 'n/a' is not a number from 0 to 1; change it, or "
            "config.task.highest_score (1 now); of a class, set --config.task.name=labeled_pairs",
        ),
        ("scored_pairs", SCORES.replace("\t1\n", "\t\u0661\n"), "row 3: score '\u0661' is not a"),
        ("labeled_pairs", SCORES, "not of labeled_pairs; set --config.task.name=scored_pairs"),
        (
            "sentence_pairs",
            NUMBERS,
            "set --config.task.name=labeled_pairs, or scored_pairs if the labels are scores",
        ),
        ("sentence_pairs", LABELS, "not of sentence_pairs; set --config.task.name=labeled_pairs"),
        (
            "scored_pairs",
            SCORES.replace("\t1\n", "\t4.2\n"),
            "row 3: score '4.2' is not a number from 0 to 1; change it, or "
            "config.task.highest_score (1 now)",
        ),
        ("scored_pairs", SCORES.replace("\t0\n", "\t-1\n"), "row 4: score '-1' is not a number"),
        ("labeled_pairs", LABELS.replace("\tyes", "\t"), "row 2: no label in column 'label'"),
        ("labeled_pairs", LABELS.splitlines()[0] + "\n", "no examples"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read(path, name)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("rte", {"task__passage_prompt": "p: "}, "task.passage_prompt=p:  has no effect for rte"),
        ("scored_pairs", {"task__directions": "both"}, "config.task.directions=both has no effect"),
        (
            "scored_pairs",
            {"task__scale": 30.0},
            "config.task.scale=30.0 has no effect with config.task.loss=cosine; set loss=cosent",
        ),
        ("rte", {"task__pooling": "max"}, "config.task.pooling=max has no effect without"),
        ("sentence_pairs", {"task__layers": "-1"}, "config.task.layers=-1 freezes the encoder"),
        (
            "sentence_pairs",
            {"task__teacher": "x"},
            "no labels that a teacher could soften, as c",
        ),
        (
            "scored_pairs",
            {"task__teacher": "x", "task__loss": "cosent"},
            "config.task.loss=cosent compares the scores of a batch with one another",
        ),
    ],
)
def test_a_setting_without_effect_is_refused(
    tmp_path: Path, name: str, changes: dict, message: str
) -> None:
    with pytest.raises(UserError) as raised:
        check_task(task_config(tmp_path, task__name=name, **changes))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ("meen", "='meen': 'meen' is none; did you mean mean?"),
        ("cls,mean_sqrt_len", "'mean_sqrt_len' is none; did you mean mean_sqrt_len_tokens?"),
        ("cls, last_token", "'last_token' is none; did you mean lasttoken?"),
        ("first", "='first': 'first' is none; valid: cls, lasttoken, max, mean, mean_sq"),
        ("mean,cls,mean", "='mean,cls,mean' should list different names of cls, max, mean, mean_"),
        ("mean,", "='mean,' should list different names"),
        ("", "='' should list different names"),
    ],
)
def test_an_unknown_pooling_is_refused(tmp_path: Path, pooling: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        task_config(tmp_path, task__name="sentence_pairs", task__pooling=pooling)
    assert str(raised.value).startswith("config.task.pooling=")
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["scored_pairs", "labeled_pairs", "sentence_pairs"])
@pytest.mark.parametrize("passage", ["bel ", "dal ", ""])
def test_each_column_has_its_prompt_in_training_in_evaluation_and_in_the_folder(
    tmp_path: Path, name: str, passage: str
) -> None:
    """Without a second one, both sentences have the first; a positive has none."""
    prompts = {"task__query_prompt": "dal ", "task__passage_prompt": passage}
    config = pairs_config(write_pairs(tmp_path), name, **prompts)
    check_task(config)
    data = open_task(config, Workdir.open("/nowhere/run"))
    second = passage or ("" if name == "sentence_pairs" else "dal ")
    for split in (data.train, data.held_out):
        found, examples = split.prepared.encoded, split.examples.examples
        texts = [text for one in examples for text in one.texts]
        prompted = [
            f"{second if place % found.sequences else 'dal '}{text}"
            for place, text in enumerate(texts)
        ]
        rows = np.split(found.ids, found.starts[1:-1])
        for ids, wanted in zip(rows, data.tokenizer.encode_texts(prompted), strict=True):
            assert ids[1:-1].tolist() == [*wanted][: len(ids) - 2]
    sentence = encoder_of_run(data.configured(config))
    assert sentence is not None
    wanted = {"query": "dal ", **dict.fromkeys(("passage", "document"), second)}
    assert sentence.prompts == {side: text for side, text in wanted.items() if text}
    same = second == "dal "
    assert sentence.default_prompt == ("query" if same else None)


def open_batches(config: Config) -> None:
    data = open_task(config, Workdir.open("/nowhere/run"))
    config = data.configured(config)
    data.phase(config, config.phases[0], make_mesh(config.mesh, jax.devices()[:1]))


ALL_BELONG = "row {{}}: in its batch of {} pairs every candidate belongs to its anchor or equals it"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["dal\tbel", "fim\tgan", "bal\tgal"], "row {}: the last batch of an epoch of 3 pairs has"),
        (["dal\tbel", "fim\tbel"], ALL_BELONG.format(2)),
        (["dal\tbel", "dal\tfim"], ALL_BELONG.format(2)),
        (["dal\tbel", "bel\tdal"], ALL_BELONG.format(2)),
        (["dal\tfim", "dal\tgan", "bel\tfim", "bel\tgan"], ALL_BELONG.format(4)),
        (["dal\tbel"], "row 2: it is the only pair for training, so that no pair has a negative"),
    ],
)
def test_a_batch_without_a_negative_is_refused(
    tmp_path: Path, rows: list[str], message: str
) -> None:
    folder = write_pairs(tmp_path)
    for name, lines in (("train", rows), ("dev", ["dal\tbel", "fim\tgan"])):
        (folder / f"{name}.tsv").write_text("\n".join(["anchor\tpositive", *lines]) + "\n")
    size = {"phases[0].batch_size": 4 if len(rows) == 4 else 2, "task.data": str(folder)}
    size |= {"task.name": "sentence_pairs"}
    config = task_config(folder).replace(size)
    with pytest.raises(UserError) as raised:
        open_batches(config)
    told = str(raised.value)
    found = [message.format(row) in told for row in range(2, 2 + len(rows))]
    assert any(found), told
    (folder / "train.tsv").write_text(
        "\n".join(["anchor\tpositive\tnegative", *(f"{row}\tdor" for row in rows)]) + "\n"
    )
    open_batches(config)  # a hard negative is enough


@pytest.mark.parametrize("dimensions", ["32", "16,16", "0", "16,x"])
def test_widths_that_are_none_are_refused(tmp_path: Path, dimensions: str) -> None:
    config = pairs_config(write_pairs(tmp_path), "sentence_pairs", task__dimensions=dimensions)
    data = open_task(config, Workdir.open("/nowhere/run"))
    with pytest.raises(UserError, match=f"config.task.dimensions={dimensions}; give different"):
        data.configured(config)


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        ("tanh", "'tanh' does not begin with a width from 1 to 65,536; give one or more layers, "),
        ("0", "'0' does not begin with a width"),
        ("99999999999", "'99999999999' does not begin with a width"),
        ("8,,4", "'' does not begin with a width"),
        ("8, 4:tanh", "after its width '4:tanh' may have one of Identity, Tanh, ReLU,"),
        ("8:ReLU:GELU", "after its width '8:ReLU:GELU' may have one of"),
        ("8:no_bias:no_bias", "after its width '8:no_bias:no_bias' may have one of"),
        ("8::", "after its width '8::' may have one of"),
    ],
)
def test_dense_layers_that_are_none_are_refused(tmp_path: Path, dense: str, message: str) -> None:
    config = pairs_config(write_pairs(tmp_path), "sentence_pairs", task__dense=dense)
    data = open_task(config, Workdir.open("/nowhere/run"))
    with pytest.raises(UserError) as raised:
        data.configured(config)
    assert str(raised.value).startswith(f"config.task.dense={dense}: {message}")
    with pytest.raises(UserError, match=f"config.task.dense={dense} has no effect for rte; leave"):
        check_task(task_config(tmp_path, task__dense=dense))


@pytest.mark.parametrize("dense", ["8", "8:Sigmoid:no_bias,16:residual", "4:Identity:residual"])
def test_dense_layers_are_named_as_they_are_given(dense: str) -> None:
    layers = parse_dense(dense, 32)
    assert ",".join(layer.setting for layer in layers) == dense
    assert [layer.width_before for layer in layers] == [32, 8][: len(layers)]


def test_a_positive_is_ranked_among_texts_that_are_not_equal() -> None:
    """The third positive is nearer to the first anchor, the second one's is the same text."""
    texts = np.array([[1, 2], [3, 2], [4, 5]])
    angles = np.array([[0.0, 0.5], [0.1, 0.5], [0.2, 0.3]])
    vectors = np.stack([np.cos(angles), np.sin(angles)], -1)
    found = sentence_metrics.ranked(texts, vectors)
    assert [one.rank for one in found] == [2, 2, 1]
    assert found[0] == pytest.approx(np.cos(0.5))
    measured = sentence_metrics.measure_ranks(found)
    assert measured == {"accuracy": pytest.approx(1 / 3), "mrr": pytest.approx(2 / 3)}
    alone = sentence_metrics.measure_ranks(sentence_metrics.ranked(texts[:1], vectors[:1]))
    assert alone == {"accuracy": None, "mrr": None}
    same = np.ones_like(vectors)  # of a model that says nothing
    assert [one.rank for one in sentence_metrics.ranked(texts, same)] == [2, 2, 3]
    nan = np.where([[[True], [False]]], np.nan, vectors)  # which is no first place
    assert [one.rank for one in sentence_metrics.ranked(texts, nan)] == [2, 2, 3]
    copies = np.array([[1, 2], [1, 3], [4, 3]])  # the last one's positive is that of 1, too
    assert [one.rank for one in sentence_metrics.ranked(copies, same)] == [0, 0, 2]


def test_a_lone_held_out_positive_is_said_to_rank_nothing() -> None:
    """A hard negative is enough, and labels are those of a kind that has them."""
    found = {}
    for name, texts, label in (
        ("sentence_pairs", ("a", "b"), None),
        ("sentence_pairs", ("a", "b", "c"), None),
        ("store_pairs", ("a", "b"), None),
        ("scored_pairs", ("a", "b"), 1.0),
    ):
        examples = Examples("", name, (), (Example("0", texts, label, 2),) * 2, {})
        found[name, len(texts)] = KINDS[name].useless(examples)
    told = "all held-out pairs have one positive, so that nothing is ranked; "
    remedy = "give more pairs, or others by config.task.held_out"
    assert [*found.values()] == [
        f"{told}{remedy}",
        "",
        f"{told}build the store with more text",
        "all held-out labels are the same",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "dimensions", "title"),
    [("max", "", "max"), ("lasttoken, weightedmean", "48,16", "lasttoken+weightedmean")],
)
def test_a_run_writes_a_folder_with_its_vectors(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pooling: str,
    dimensions: str,
    title: str,
) -> None:
    folder = write_pairs(tmp_path / "task")
    prompts = {"task__query_prompt": "dal ", "task__passage_prompt": "bel "}
    config = pairs_config(
        folder, "sentence_pairs", mesh__data=-1, task__epochs=0.3, task__pooling=pooling,
        task__dimensions=dimensions, **prompts,
    )  # fmt: skip
    finetune(config, tmp_path / "run")
    assert "held-out: loss" in capsys.readouterr().out
    bert_jax.export(tmp_path / "run", tmp_path / "out")
    about = json.loads((tmp_path / "out/config_sentence_transformers.json").read_text())
    # "document" is what `encode_document` of sentence-transformers looks for first.
    assert about["prompts"] == {"query": "dal ", "passage": "bel ", "document": "bel "}
    assert about["default_prompt_name"] is None
    limit = json.loads((tmp_path / "out/sentence_bert_config.json").read_text())
    no_pooler = {"add_pooling_layer": False}  # of which it would else warn
    assert limit == {"max_seq_length": 32, "do_lower_case": False, "model_args": no_pooler}
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["BertModel"]
    assert (
        f"with {title} pooling, normalization, trained" in (tmp_path / "out/README.md").read_text()
    )
    read_run = read_model(str(tmp_path / "run"))
    kind = KINDS["sentence_pairs"]
    examples = kind.read_new(config.task, str(folder / "pairs.tsv"), "test")
    predictor = Predictor(read_run.config, read_run.params, read_run.tokenizer)
    _, wanted = predictor.outputs(config.task, examples, length=32)
    model = bert_jax.load(tmp_path / "out")
    for number, prompt in enumerate(prompts.values()):
        found = model.encode([f"{prompt}{one.texts[number]}" for one in examples.examples])
        theirs = np.stack([one[number] for one in wanted])
        np.testing.assert_allclose(found, theirs, atol=1e-5)
    out = tmp_path / "predictions.tsv"
    source = folder / "pairs.tsv"
    words = ["predict", f"--model={tmp_path / 'run'}", f"--input={source}", f"--out={out}"]
    assert cli.main(words) == 0
    assert len(out.read_text().splitlines()) == 1 + TRAIN
    source = tmp_path / "empty.tsv"
    source.write_text("anchor\tpositive\n")
    words = ["predict", f"--model={tmp_path / 'run'}", f"--input={source}", f"--out={out}"]
    assert cli.main([*words, "--overwrite"]) == 0
    assert out.read_text().splitlines() == ["index\tprediction"]
    words = ["evaluate", f"--workdir={tmp_path / 'run'}", f"--per_example={tmp_path / 'x.npz'}"]
    assert cli.main(words) == 1
    assert "compares examples, so that none has a loss of its own" in capsys.readouterr().err
    assert cli.main(words[:2]) == 1
    wanted = (
        f"`bert-jax evaluate --model={tmp_path / 'run'}` with --scored_pairs=… or --retrieval=…"
    )
    assert wanted in capsys.readouterr().err
    words = ["predict", f"--model={tmp_path / 'out'}", f"--input={source}", f"--out={out}"]
    assert cli.main([*words, "--overwrite"]) == 1
    wanted = "has no head of a task; give the workdir of the run that it was exported from"
    assert wanted in capsys.readouterr().err
    with pytest.raises(UserError, match=wanted):
        model.predict("dal")


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "width"), [("mean", 32), ("cls,max,mean_sqrt_len_tokens", 96)])
def test_the_head_of_labels_stays_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pooling: str, width: int
) -> None:
    folder = write_pairs(tmp_path / "task")
    config = pairs_config(
        folder, "labeled_pairs", mesh__data=-1, task__epochs=0.3, task__query_prompt="dal ",
        task__pooling=pooling, task__dimensions="24",
    )  # fmt: skip
    finetune(config, tmp_path / "run")
    bert_jax.export(tmp_path / "run", tmp_path / "out")
    assert "left out: pair-classification head, which only" in capsys.readouterr().out
    about = json.loads((tmp_path / "out/config_sentence_transformers.json").read_text())
    assert about["default_prompt_name"] == "query"
    assert bert_jax.load(tmp_path / "out").encode(["bel"]).shape == (1, width)
    out = tmp_path / "predictions.tsv"
    words = ["predict", f"--model={tmp_path / 'run'}", f"--input={folder / 'train.tsv'}"]
    assert cli.main([*words, f"--out={out}"]) == 0
    assert out.read_text().splitlines()[0] == "index\tprediction\tprobability"
