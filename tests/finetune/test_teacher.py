"""A teacher of a run: what it says, who keeps it, what a student learns of it, its errors."""

import csv
import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hub_server import Hub, commit_of, serve, use_endpoint
from nightly import others_nightly
from runs import read_meta, read_records
from small_task import (
    TASKS,
    TRAIN,
    WORDS,
    pairs_config,
    task_config,
    write_pairs,
    write_task,
)

from bert_jax import cli
from bert_jax.config.schema import Config, MeshConfig
from bert_jax.config.task_model import HeadConfig, TaskModelConfig, VectorConfig, with_head
from bert_jax.config.task_settings import TaskConfig
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.distributed.job import Job, in_process_job
from bert_jax.errors import StoppedError, UserError
from bert_jax.finetune import teacher as teachers
from bert_jax.finetune.runs import finetune, open_taught
from bert_jax.finetune.task_data import TaskData, open_task
from bert_jax.finetune.tasks import soft_answers, tagging
from bert_jax.finetune.tasks.labeled_examples import Question
from bert_jax.finetune.tasks.qa import Lengths, windows
from bert_jax.finetune.tasks.task_kinds import KINDS
from bert_jax.objectives.soft_labels import TEACHER, softmax
from bert_jax.parallel.mesh import make_mesh
from bert_jax.publish.export import run_export
from bert_jax.storage.digest import json_digest
from bert_jax.training.hub_names import commits_of
from bert_jax.training.options import RunOptions
from bert_jax.training.step import make_step_functions
from bert_jax.workdir.layout import Workdir

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
# The teacher reads letters, the student words.
LETTERS = [*SPECIAL, *"abdefgilmnoru", *(f"##{letter}" for letter in "abdefgilmnoru")]
OTHER = {"model__hidden_size": 16, "model__num_hidden_layers": 1, "model__initializer_range": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_task(tmp_path_factory.mktemp("task"))
    Tokenizer.from_vocab(LETTERS, lowercase=True).save(made / "letters.json")
    return made


def taught(folder: Path, task: str, run: Path) -> Path:
    """A run of one step of a model with another tokenizer and width, and shorter texts."""
    changes = {"task__name": task, "task__tokenizer": str(folder / "letters.json")}
    changes |= {"mesh__data": -1, "task__epochs": 0.1, "phases[0]__seq_length": 48}
    config = task_config(folder, **changes, **OTHER)
    finetune(config.replace("phases[0].row_length", 48), run)
    return run


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught(folder, "rte", tmp_path_factory.mktemp("runs") / "teacher")


@pytest.fixture
def job() -> Iterator[Job]:
    with in_process_job(Config()) as started:
        yield started


def student(folder: Path, run: Path, **changes: Any) -> Config:
    return task_config(folder, mesh__data=-1, task__teacher=str(run), **changes)


def opened(config: Config, workdir: Path, job: Job) -> TaskData:
    """The data of a run that has claimed its workdir."""
    workdir.mkdir(parents=True, exist_ok=True)
    nowhere = Workdir.open("/nowhere/run")
    data = open_taught(config, nowhere)
    return data.with_outputs(config, Workdir.open(workdir), job)


# What it says ------------------------------------------------------------------------------------


def test_its_outputs_are_those_of_predict(
    folder: Path, run: Path, tmp_path: Path, job: Job
) -> None:
    data = opened(student(folder, run, task__temperature=1.0), tmp_path / "run", job)
    soft = data.train.prepared.targets.of_examples[TEACHER]
    assert soft.shape == (TRAIN, 2)
    out = tmp_path / "out.tsv"
    words = ["predict", f"--model={run}", f"--input={folder / 'train.tsv'}", f"--out={out}"]
    assert cli.main(words) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [data.labels[guess] for guess in soft.argmax(-1)] == [r["prediction"] for r in rows]
    found = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(soft.max(-1), found, atol=1e-4)  # 4 digits are written
    assert len(set(found)) > 10


def test_a_teacher_and_a_tokenizer_may_be_on_the_hub(
    folder: Path, run: Path, tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_export(run, tmp_path / "exported")
    files = {file.name: file.read_bytes() for file in (tmp_path / "exported").iterdir()}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
    with serve(Hub({"org/rte": {"main": files}})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        config = student(folder, tmp_path / "exported", task__tokenizer="hf:org/rte")
        wanted = opened(config, tmp_path / "one", job)
        found = opened(config.replace("task.teacher", "hf:org/rte"), tmp_path / "two", job)
        assert commits_of(config.replace("task.teacher", "hf:org/rte")) == {
            "models/org/rte": commit_of("main")
        }
    assert found.tokenizer.digest == Tokenizer.load(tmp_path / "exported/tokenizer.json").digest
    soft, other = (data.train.prepared.targets.of_examples[TEACHER] for data in (wanted, found))
    np.testing.assert_array_equal(soft, other)


def test_labels_in_another_order_are_found_by_their_names(
    folder: Path, run: Path, tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = student(folder, run)
    wanted = opened(config, tmp_path / "one", job).train.prepared.targets.of_examples[TEACHER]
    read = teachers.read_model

    def turned(source: str) -> Any:
        found = read(source)
        head = dataclasses.replace(found.config.head, labels=found.config.head.labels[::-1])
        return dataclasses.replace(found, config=dataclasses.replace(found.config, head=head))

    monkeypatch.setattr(teachers, "read_model", turned)
    found = opened(config, tmp_path / "two", job).train.prepared.targets.of_examples[TEACHER]
    np.testing.assert_array_equal(found, wanted[:, ::-1])


def test_the_tags_of_a_word_are_on_its_first_piece(folder: Path) -> None:
    sentences, _ = KINDS["tagging"].read(TaskConfig(name="tagging", data=str(folder)))
    made = {}
    for name, row in (("tokenizer", 32), ("letters", 48)):
        pieces = Tokenizer.load(folder / f"{name}.json").for_task(
            in_words=True, split_special_tokens=False
        )
        made[name] = tagging.windows(sentences.examples, pieces, row)
    draw = np.random.default_rng(0)
    logits = [draw.normal(size=(len(one.token_ids), 3)) for one in made["letters"]]
    found = tagging.of_words(made["letters"], logits)
    on = tagging.on_tokens(made["tokenizer"], found)
    words = [(one.example, int(word)) for one in made["letters"] for word in one.words]
    assert len(found) == sum(len(one.words) for one in sentences.examples) == len(set(words))
    labels, weights = zip(*map(tagging.token_labels, made["tokenizer"]), strict=True)
    weights = np.concatenate(weights)
    np.testing.assert_array_equal(on[weights > 0], found)
    assert not on[weights == 0].any()
    assert len(labels) < len(logits)


CONTEXT = "bal gun dil fem. bol"


def asked(tokenizer: Tokenizer, row: int) -> list:
    (question,) = [Question("q", "dan", CONTEXT, (("gun", 4),), False, 1)]
    return windows([question], tokenizer, Lengths(row, 3, 8))


def test_answers_move_to_the_tokens_with_their_characters() -> None:
    """Letters teach words: the first letter of a word begins it, the last one ends it."""
    letters = Tokenizer.from_vocab(LETTERS, lowercase=True)
    words = Tokenizer.from_vocab([*SPECIAL, *WORDS], lowercase=True)
    (theirs,) = asked(letters, 40)
    (ours,) = asked(words, 40)
    logits = np.random.default_rng(1).normal(size=(len(theirs.token_ids), 2)).astype("f")
    outputs = soft_answers.of_pieces([theirs], [logits])
    found = soft_answers.on_tokens(outputs, [ours], 2.0)
    part = logits[theirs.first : theirs.first + len(theirs.spans)]
    p = softmax(np.vstack([logits[:1], part]).T, 2.0).T
    wanted = np.zeros_like(found)
    wanted[0] = p[0]
    for (begin, end), shares in zip(theirs.spans.tolist(), p[1:], strict=True):
        for column, character in enumerate((begin, end - 1)):
            (token,) = (
                k for k, (first, after) in enumerate(ours.spans.tolist())
                if first <= character < after
            )  # fmt: skip
            wanted[ours.first + token, column] += shares[column]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(found.sum(0), 1, atol=1e-6)


def test_the_same_tokenizer_and_one_window_keep_every_probability() -> None:
    words = Tokenizer.from_vocab([*SPECIAL, *WORDS], lowercase=True)
    (window,) = asked(words, 40)
    logits = np.random.default_rng(1).normal(size=(len(window.token_ids), 2)).astype("f")
    found = soft_answers.on_tokens(soft_answers.of_pieces([window], [logits]), [window], 2.0)
    kept = [0, *range(window.first, window.first + len(window.spans))]
    np.testing.assert_allclose(found[kept], softmax(logits[kept].T, 2.0).T, atol=1e-6)
    assert not np.delete(found, kept, axis=0).any()


def test_what_a_window_lacks_goes_to_its_cls() -> None:
    """The teacher reads the text in one window, the student in several, and the other way."""
    words = Tokenizer.from_vocab([*SPECIAL, *WORDS], lowercase=True)
    (whole,) = asked(words, 40)
    several = asked(words, 7)
    assert len(several) > 1
    draw = np.random.default_rng(2)
    logits = [draw.normal(size=(len(one.token_ids), 2)).astype("f") for one in [whole, *several]]
    one = soft_answers.on_tokens(soft_answers.of_pieces([whole], logits[:1]), [whole], 1.0)
    parts = soft_answers.on_tokens(soft_answers.of_pieces([whole], logits[:1]), several, 1.0)
    at = 0
    for window in several:
        own = parts[at : at + len(window.token_ids)]
        at += len(own)
        (offset,) = np.flatnonzero(whole.spans[:, 0] == window.spans[0, 0])
        inside = one[whole.first + offset :][: len(window.spans)]
        np.testing.assert_allclose(own[window.first :][: len(inside)], inside, atol=1e-6)
        np.testing.assert_allclose(own.sum(0), 1, atol=1e-6)
    outputs = soft_answers.of_pieces(several, logits[1:])
    np.testing.assert_array_equal(outputs["spans"], whole.spans)
    first = min((x[0] for x in logits[1:]), key=np.sum)
    np.testing.assert_array_equal(outputs["none"], [first])


# What a student learns of it ---------------------------------------------------------------------


def step_of(config: Config, data: TaskData, devices: int, **drop: bool) -> dict[str, Any]:
    """The metrics of the first step, from the same weights."""
    config = data.configured(config)
    mesh = make_mesh(MeshConfig(slice=1, data=devices, fsdp=1, tensor=1), jax.devices()[:devices])
    with jax.set_mesh(mesh), jax.default_matmul_precision("highest"):
        phase = data.phase(config, config.phases[0], mesh)
        program = make_step_functions(config, mesh, phase.held_out.corpus)
        batch = phase.train.batch(0)
        if drop:
            del batch[TEACHER]
        parts = config.phases[0].micro_batches
        return jax.device_get(program.train(program.init(), batch, micro_batches=parts)[1])


@pytest.mark.parametrize("task", others_nightly(TASKS, keep=["rte"]))
def test_devices_rows_and_micro_batches_change_nothing(
    folder: Path, run: Path, tmp_path: Path, task: str, job: Job
) -> None:
    """All examples in one batch, so that packed and padded rows have the same."""
    teacher = run if task == "rte" else taught(folder, task, tmp_path / "teacher")
    changes = {"task__name": task, "task__teacher_weight": 0.7, "phases[0]__batch_size": 1000}
    found = []
    for number, (devices, packed, parts) in enumerate(((1, 8, 1), (8, 8, 1), (1, 1, 2))):
        shape = {"phases[0]__examples_per_row": packed, "phases[0]__micro_batches": parts}
        config = student(folder, teacher, **changes, **shape)
        data = opened(config, tmp_path / str(number), job)
        found.append(step_of(config, data, devices))
    for other in found[1:]:
        for name in ("loss", "grad_norm"):
            assert other[name] == pytest.approx(found[0][name], rel=1e-5), name
        (name,) = set(other["sums"]) - {"tokens"}
        assert other["sums"][name]["teacher_loss"] == pytest.approx(
            found[0]["sums"][name]["teacher_loss"], rel=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("task", ["labeled_pairs", "scored_pairs"])
def test_a_teacher_of_pairs_teaches_on_8_devices_as_on_one(
    tmp_path: Path, task: str, job: Job
) -> None:
    folder = write_pairs(tmp_path / "pairs")
    teacher = pairs_config(folder, task, task__epochs=0.1, mesh__data=-1, **OTHER)
    finetune(teacher, tmp_path / "teacher")
    changes = {"task__teacher": str(tmp_path / "teacher"), "task__epochs": 1, "mesh__data": -1}
    found = []
    for number, (devices, parts) in enumerate(((1, 1), (8, 2))):
        split = {"phases[0]__micro_batches": parts, "phases[0]__batch_size": 16}
        config = pairs_config(folder, task, **changes, **split)
        data = opened(config, tmp_path / str(number), job)
        found.append(step_of(config, data, devices)["sums"][task])
    soft = data.train.prepared.targets.of_examples[TEACHER]
    assert soft.shape[1] == {"labeled_pairs": len(data.labels), "scored_pairs": 1}[task]
    one, other = found
    assert one["teacher_loss"] > 0
    assert other["teacher_loss"] == pytest.approx(one["teacher_loss"], rel=1e-5)


def test_without_a_share_the_teacher_changes_nothing(
    folder: Path, run: Path, tmp_path: Path, job: Job
) -> None:
    config = student(folder, run, task__teacher_weight=0.0)
    data = opened(config, tmp_path / "run", job)
    one, other = step_of(config, data, 1), step_of(config, data, 1, without=True)
    assert one["loss"] == other["loss"]
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-6)
    half = step_of(config.replace("task.teacher_weight", 0.5), data, 1)
    assert half["loss"] != one["loss"]


# Who keeps it ------------------------------------------------------------------------------------


def last_of(run: Path) -> dict[str, Any]:
    return read_meta(run, read_records(run, "eval")[-1]["step"])


def test_a_run_resumes_without_its_teacher_to_the_same_bits(
    folder: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = shutil.copytree(run, tmp_path / "teacher")
    config = student(folder, teacher, task__epochs=0.4, checkpoint__every_steps=2)
    finetune(config, tmp_path / "whole")
    with pytest.raises(StoppedError):
        finetune(config, tmp_path / "stopped", options=RunOptions(stop_after=2))
    monkeypatch.setattr(teachers.Teacher, "_ask", None)  # never again
    params = teacher / "checkpoints"
    hidden = params.rename(tmp_path / "hidden")
    shutil.copytree(tmp_path / "stopped/checkpoints", params)  # other weights in its place
    said = r"stopped: config\.task\.teacher=\S+/teacher has changed since the run started; [^\n]*$"
    shutil.copyfile(tmp_path / "stopped/config.json", teacher / "config.json")
    shutil.copyfile(tmp_path / "stopped/tokenizer.json", teacher / "tokenizer.json")
    with pytest.raises(UserError, match=said):
        finetune(config, tmp_path / "stopped")
    shutil.rmtree(teacher)
    finetune(config, tmp_path / "stopped")
    one, other = (last_of(tmp_path / name) for name in ("whole", "stopped"))
    assert one["fingerprints"] == other["fingerprints"]
    assert one["data"]["teacher"] == other["data"]["teacher"]
    (*_, train) = read_records(tmp_path / "stopped", "train")
    figures = ("loss", "agreement")
    wanted = {f"{of}teacher_{what}" for of in ("", "baseline_") for what in figures}
    assert wanted <= {name.rpartition("/")[2] for name in train}
    (*_, held_out) = read_records(tmp_path / "stopped", "eval")
    assert not any("teacher" in name for name in held_out)
    assert hidden.exists()


def test_a_file_that_is_lost_is_made_again(
    folder: Path, run: Path, tmp_path: Path, job: Job
) -> None:
    """Only while the teacher is there; a damaged one counts as lost."""
    config = student(folder, run)
    before = opened(config, tmp_path / "run", job).train.prepared.targets.of_examples[TEACHER]
    file = tmp_path / "run/teacher_outputs.npz"
    file.write_bytes(file.read_bytes()[:-50])
    after = opened(config, tmp_path / "run", job).train.prepared.targets.of_examples[TEACHER]
    np.testing.assert_array_equal(before, after)
    file.unlink()
    gone = teachers.Teacher(str(run), KINDS["classification"], None, "digest")
    examples = open_task(config, Workdir.open("/nowhere/run")).train.examples
    with pytest.raises(UserError, match=r"teacher_outputs\.npz: missing or damaged") as raised:
        gone.outputs(examples, "", Workdir.open(tmp_path / "run"), job)
    assert "\n" not in str(raised.value)


def test_seeds_ask_the_teacher_once(
    folder: Path, run: Path, tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = student(folder, run)
    found = Workdir.open(tmp_path)
    data = open_taught(config, found)
    files = []
    for name in ("seed-0", "seed-1"):
        (tmp_path / name).mkdir()
        data.with_outputs(config, Workdir.open(tmp_path / name), job)
        with np.load(tmp_path / name / "teacher_outputs.npz") as outputs:
            files.append(dict(outputs))
        monkeypatch.setattr(teachers.Teacher, "_ask", None)
    assert files[0].keys() == files[1].keys()
    for name, array in files[0].items():
        np.testing.assert_array_equal(array, files[1][name], err_msg=name)


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__teacher": "nowhere"}, "config.task.teacher=nowhere: no such folder; give that"),
        ({"task__teacher": "a/b"}, "; did you mean hf:a/b, a model on the Hugging Face hub?"),
        (
            {"task__name": "tagging"},
            "its sequence-classification head is for single_label_classification, the task needs "
            "one for token_classification; fine-tune a model for the same kind of task",
        ),
        (
            {"task__temperature": 3.0, "task__teacher": ""},
            "config.task.temperature=3.0 has no effect without config.task.teacher; set it",
        ),
        (
            {"task__teacher_weight": 0.1, "task__teacher": ""},
            "config.task.teacher_weight=0.1 has no effect without config.task.teacher; set it",
        ),
        (
            {"distillation__temperature": 3.0},
            "config.distillation.temperature is of pretraining; a task has config.task.teacher, ",
        ),
        ({"task__temperature": 0.0}, "config.task.temperature=0.0 should be from 0 "),
        ({"task__teacher_weight": 1.5}, "config.task.teacher_weight=1.5 should be from 0 "),
    ],
)
def test_a_teacher_that_cannot_teach_is_one_line(
    folder: Path, run: Path, tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        finetune(task_config(folder, **{"task__teacher": str(run), **changes}), tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def order(labels: tuple[str, ...], task: str = "classification", **head: Any) -> Any:
    """The order of a teacher's outputs for the labels a and b."""
    plain = Config().model
    made: Any = with_head(plain, HeadConfig(name="classifier", labels=labels, **head))
    assert isinstance(made, TaskModelConfig)
    return teachers._order(SimpleNamespace(config=made, sentence=None), KINDS[task], ("a", "b"))


def test_its_labels_are_those_of_the_task() -> None:
    assert order(("b", "a")) == (1, 0)
    assert order(("LABEL_0", "LABEL_1")) == (0, 1)
    for labels, message in (
        (("a", "b", "c"), "it has 3 labels (a, b, c), the task 2 (a, b); give"),
        (("a", "c"), "it lacks the label b of the task and has c; give"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            order(labels)
    with pytest.raises(UserError, match="is for multi_label_classification, the task needs one"):
        order(("a", "b"), problem_type="multi_label_classification")
    read = SimpleNamespace(config=Config().model, sentence=None)
    with pytest.raises(UserError, match="the model has no head of a task"):
        teachers._order(read, KINDS["classification"], ("a",))


def test_the_digest_of_a_teacher_of_vectors_has_all_that_they_depend_on(
    tokenizer: Tokenizer,
) -> None:
    """That of another one is as before there were vectors."""
    vectors = VectorConfig(loss="cosine")
    head = HeadConfig(name="x", vectors=vectors)

    def digest(head: HeadConfig, **task: Any) -> str:
        read = SimpleNamespace(
            params={}, tokenizer=tokenizer, config=with_head(Config().model, head)
        )
        return teachers._Model(read, (), TaskConfig(**task), 32).digest  # type: ignore[arg-type]

    others = [
        digest(dataclasses.replace(head, pooling="max")),
        digest(dataclasses.replace(head, vectors=VectorConfig(loss="cosine", normalize=False))),
        digest(head, query_prompt="q: "),
        digest(head, passage_prompt="p: "),
    ]
    assert len({digest(head), *others}) == 5
    plain = HeadConfig(name="x")
    assert digest(plain) == digest(plain, query_prompt="q: ")
    parts = {
        "weights": teachers.arrays_digest({}), "tokenizer": tokenizer.digest, "order": (),
        "length": 32, "windows": [128, 64],
    }  # fmt: skip
    assert digest(plain) == json_digest(parts)


def test_scores_have_no_temperature_and_pretraining_no_teacher(tmp_path: Path) -> None:
    task = TaskConfig(name="regression", teacher="run", temperature=3.0)
    with pytest.raises(UserError, match=r"temperature=3\.0 has no effect for regression"):
        teachers.check_teaching(task, KINDS["regression"])
    words = ["--config=base", "--config.data.store=store", "--config.task.teacher=run"]
    assert cli.main(["pretrain", *words, f"--workdir={tmp_path / 'run'}"]) != 0
    assert not (tmp_path / "run").exists()
