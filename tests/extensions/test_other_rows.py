"""An optimizer and a kind of task of a user, each in one file."""

from pathlib import Path

import pytest
from corpus import small_store
from small_task import WORDS, task_config, write_task
from users_modules import LION, REVIEWS, SMALLEST, command, error, write

from bert_jax.config.serialization import flatten, to_dict

CONFIG = """
from bert_jax.configs.glue import get_config as glue

def get_config():
    config = glue()
    config.update_from_flattened_dict({changes!r})
    config.phases[0].update({phase!r})
    return config
"""


@pytest.mark.slow
def test_an_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    small_store(tmp_path / "store")
    write(tmp_path, "lion.py", LION)
    words = ("pretrain", *SMALLEST, "--config.optimizer.name=lion")
    assert "config.optimizer.name='lion'" in error(capsys, *words)
    assert command(capsys, *words, "--module=lion.py")[0] == 0
    for other in (words, ("evaluate", "--workdir=run")):
        line = error(capsys, *other)
        assert "made with --module=lion.py (sha256 " in line
        assert line.endswith("which defines optimizer 'lion'; give it again")
    assert command(capsys, "evaluate", "--workdir=run", "--module=lion.py")[0] == 0


@pytest.mark.slow
def test_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path / "words")
    for split, count in (("train", 24), ("test", 8)):
        for name in ("pos", "neg"):
            folder = tmp_path / "reviews" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                words = [WORDS[number % 20 + (40 if name == "pos" else 0)], *WORDS[number:][:5]]
                (folder / f"{number}.txt").write_text(" ".join(words))
    write(tmp_path, "reviews.py", REVIEWS)
    values = flatten(to_dict(task_config(tmp_path / "words")))
    changed = ("model.", "compute.dtype", "task.tokenizer", "optimizer.learning_rate")
    changes = {k: v for k, v in values.items() if k.startswith(changed) and v is not None}
    phase = {"batch_size": 8, "examples_per_row": 8, "seq_length": 32}
    changes |= {"task.name": "reviews", "task.data": "reviews"}
    write(tmp_path, "conf.py", CONFIG.format(changes=changes, phase=phase))
    words = ("finetune", "--config=conf.py", "--workdir=run")
    assert "config.task.name='reviews'" in error(capsys, *words)
    code, said = command(capsys, *words, "--module=reviews.py")
    assert code == 0, said
    predict = ("predict", "--model=run", "--input=reviews", "--out=out.tsv")
    for other in (words, predict):
        line = error(capsys, *other)
        assert line.endswith("which defines kind of task 'reviews'; give it again")
    assert command(capsys, *predict, "--module=reviews.py")[0] == 0
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 17
