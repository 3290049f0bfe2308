"""A global theta of a phase: as ModernBERT raises it with the length of its rows."""

import dataclasses
import json
from pathlib import Path

import pytest
from corpus import small_store, two_phases
from layout_models import LAYOUTS
from runs import read_meta, read_records

from bert_jax import cli
from bert_jax.api.model import load
from bert_jax.config.recorded import model_of
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.training.loop import pretrain
from bert_jax.training.resolve import find_architecture


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("theta") / "store")


def config_of(store: TokenStore, **changes: object) -> Config:
    """A ModernBERT whose base is 3 in the first phase, in rows of 16 tokens, and then 1,000."""
    config = two_phases(store)
    form = LAYOUTS["modernbert"] | {"global_rope_theta": 1000.0, "initializer_range": 0.5}
    form |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = dataclasses.replace(config.model, **form)
    short, long = config.phases
    phases = dataclasses.replace(short, global_rope_theta=3.0), long
    return dataclasses.replace(
        config,
        model=model,
        data=dataclasses.replace(config.data, pairing="full_sentences"),
        phases=phases,
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=6),
        evaluation=dataclasses.replace(config.evaluation, every_steps=6),
        **changes,
    )


@pytest.mark.slow
def test_a_checkpoint_has_the_theta_of_its_phase(store: TokenStore, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretrain(config_of(store), run)
    assert [model_of(read_meta(run, step)).global_rope_theta for step in (6, 12)] == [3.0, 1000.0]
    for step, theta in ((6, 3.0), (12, 1000.0)):
        words = ["convert", "export", f"--workdir={run}", f"--step={step}"]
        assert cli.main([*words, f"--out={tmp_path / str(step)}"]) == 0
        assert load(tmp_path / str(step)).config.global_rope_theta == theta
    # So has what starts from a step: the newest by default.
    for name, theta in ((f"{run}@6", 3.0), (f"{run}@12", 1000.0), (str(run), 1000.0)):
        found = find_architecture(name)
        assert found
        assert found.global_rope_theta == theta
    # `evaluate` measures what the run measured at the end of each phase, and not with another base.
    within = {record["step"]: record["mlm/loss"] for record in read_records(run, "eval")}
    assert cli.main(["evaluate", f"--workdir={run}", "--all"]) == 0
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    after = {one["step"]: one["mlm/loss"] for one in map(json.loads, lines)}
    for step in (6, 12):
        assert after[step] == pytest.approx(within[step], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 6, 9])
def test_a_run_carried_with_the_same_configuration_is_that_run_resumed(
    step: int, store: TokenStore, tmp_path: Path
) -> None:
    """Before, where, and after the base changes."""
    config = config_of(store)
    often = dataclasses.replace(config.checkpoint, every_steps=3, keep=4)
    config = dataclasses.replace(config, checkpoint=often)
    pretrain(config, tmp_path / "run")
    init = {"init": f"{tmp_path / 'run'}@{step}", "init_optimizer": "carry"}
    pretrain(config.replace(init), tmp_path / "other")
    ends = [read_meta(tmp_path / name, 12)["fingerprints"] for name in ("run", "other")]
    assert ends[0] == ends[1]
    # Updates from 0 on begin with the first phase, whose key the message names.
    with pytest.raises(UserError, match=r"; set --config\.phases\[0\]\.global_rope_theta=1000\.0$"):
        pretrain(config.replace("init", f"{tmp_path / 'run'}@12"), tmp_path / "third")


def test_phases_of_another_theta_train_otherwise(store: TokenStore, tmp_path: Path) -> None:
    """The first phase reads positions by its own base; the second one by the model's."""
    config = config_of(store)
    same = dataclasses.replace(config.phases[0], global_rope_theta=None)
    plain = dataclasses.replace(config, phases=(same, config.phases[1]))
    assert config.with_only(config.phases[0]).model.global_rope_theta == 3.0
    assert config.with_only(config.phases[1]).model == plain.model


def test_a_theta_without_rotary_positions_is_refused(store: TokenStore) -> None:
    config = two_phases(store)
    phase = dataclasses.replace(config.phases[1], global_rope_theta=160_000.0)
    with pytest.raises(UserError, match=r"phases\[1\]\.global_rope_theta=160000 has no effect"):
        dataclasses.replace(config, phases=(config.phases[0], phase))
