"""`config.init_optimizer=carry`: runs that take the moments and the step of their model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store, two_phases
from hub_server import Hub, serve, use_endpoint
from nightly import others_nightly
from runs import read_meta, read_records

import bert_jax
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError, UserError
from bert_jax.publish.export import run_export
from bert_jax.reporting import status
from bert_jax.training import loop, skip_nonfinite
from bert_jax.training.options import RunOptions

STATE = "optimizer.safetensors"
COUNTS = tuple(skip_nonfinite.start())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("initial") / "store")


def stop(config: Config, run: Path, step: int) -> None:
    with pytest.raises(StoppedError):
        loop.pretrain(config, run, options=RunOptions(stop_after=step))


def four_steps(store: TokenStore) -> Config:
    return small_config(store).replace({"phases[0].steps": 4, "log_every_steps": 1})


@pytest.fixture(scope="module")
def source(store: TokenStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped at step 2 and resumed, in `run`, and its export of step 2."""
    folder = tmp_path_factory.mktemp("source")
    config = four_steps(store).replace("checkpoint.every_steps", 2)
    stop(config, folder / "run", 2)
    run_export(folder / "run", folder / "exported", optimizer_state=True)
    loop.pretrain(config, folder / "run")
    return folder


def carried(config: Config, model: Path | str, **changes: object) -> Config:
    return config.replace({"init": str(model), "init_optimizer": "carry", **changes})


def assert_same_end(run: Path, other: Path, step: int) -> None:
    """The state, bit for bit, and the losses on the way."""
    ends = [read_meta(folder, step)["fingerprints"] for folder in (run, other)]
    assert ends[0] == ends[1]
    losses, others = (
        {r["step"]: r["loss"] for r in read_records(f, "train")} for f in (run, other)
    )
    assert len(losses) > 1
    assert losses.items() <= others.items()


@pytest.mark.slow
def test_a_run_from_an_export_ends_as_the_run_that_resumes(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """It is stopped itself, and resumes without the export."""
    shutil.copytree(source / "exported", tmp_path / "model")
    config = carried(four_steps(store), tmp_path / "model")
    stop(config, tmp_path / "run", 3)
    assert f"starts from {tmp_path}/model at its step 2, with the moments\n" in (
        capsys.readouterr().out
    )
    shutil.rmtree(tmp_path / "model")
    loop.pretrain(config, tmp_path / "run")
    assert f"resumes from step 3 in {tmp_path}/run" in capsys.readouterr().out
    assert_same_end(tmp_path / "run", source / "run", 4)
    seen = status.read_status(tmp_path / "run")
    rows = json.loads((tmp_path / "run/config.json").read_text())["data"]["rows_per_epoch"]
    assert (seen.step, seen.total_steps) == (4, 4)
    assert seen.epochs == [2 * 8 / rows[0]]  # of this run
    assert [attempt.first for attempt in seen.attempts] == [2, 3]
    run_export(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "| trained | 2 steps of 8 rows" in card
    assert f"| continues | {tmp_path}/model, at its step 2" in card


@pytest.mark.slow
@pytest.mark.parametrize("carry", [True, False])
def test_the_state_on_the_hub_is_downloaded_where_it_is_taken(
    carry: bool, store: TokenStore, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {file.name: file.read_bytes() for file in (source / "exported").iterdir()}
    with serve(Hub({"org/bert": {"main": files}})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        config = four_steps(store).replace("init", "hf:org/bert")
        config = config.replace("init_optimizer", "carry" if carry else "reset")
        stop(config, tmp_path / "run", 3)
        assert any("optimizer.safetensors" in path for path in server.requests) is carry
    if carry:
        stop(carried(four_steps(store), source / "exported"), tmp_path / "local", 3)
        ends = [read_meta(tmp_path / run, 3)["fingerprints"] for run in ("run", "local")]
        assert ends[0] == ends[1]


def test_a_run_from_a_step_of_a_workdir_ends_as_that_run(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    config = carried(four_steps(store), f"{source}/run@2")
    loop.pretrain(config, tmp_path / "run")
    assert_same_end(tmp_path / "run", source / "run", 4)


@pytest.mark.slow
def test_a_run_goes_on_with_the_average_and_the_skipped_steps_of_a_workdir(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skipped step is no update, which the average counts."""
    config = four_steps(store).replace("optimizer.ema_decay", 0.9)
    with monkeypatch.context() as patched:
        patched.setattr(
            skip_nonfinite, "start", lambda: dict.fromkeys(COUNTS, jnp.ones((), jnp.int32))
        )
        stop(config, tmp_path / "run", 2)
    run_export(tmp_path / "run", tmp_path / "exported", optimizer_state=True)
    loop.pretrain(config, tmp_path / "run")
    loop.pretrain(carried(config, f"{tmp_path}/run@2"), tmp_path / "continued")
    assert_same_end(tmp_path / "continued", tmp_path / "run", 4)
    assert any(name.startswith("ema/") for name in read_meta(tmp_path / "run", 4)["fingerprints"])
    loop.pretrain(
        carried(config, f"{tmp_path}/run@2", **{"optimizer.ema_decay": 0.0}), tmp_path / "without"
    )
    for model, decay in ((f"{tmp_path}/run@2", 0.5), (tmp_path / "exported", 0.9)):
        other = carried(config, model, **{"optimizer.ema_decay": decay})
        line = f"config.init={model}: has no average of all weights with config.optimizer.ema_decay"
        with pytest.raises(UserError, match=line):
            loop.pretrain(other, tmp_path / "refused")


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    others_nightly(
        [
            {"name": "adamw"},
            {"name": "lamb"},
            {"name": "muon"},
            {"name": "muon", "moment_dtype": "bfloat16"},
        ],
        keep=[{"name": "muon", "moment_dtype": "bfloat16"}],
    ),
    ids=lambda values: "-".join(values.values()),
)
def test_every_optimizer_continues(optimizer: dict, store: TokenStore, tmp_path: Path) -> None:
    changes = {f"optimizer.{key}": value for key, value in optimizer.items()}
    config = four_steps(store).replace(changes)
    stop(config, tmp_path / "run", 2)
    run_export(tmp_path / "run", tmp_path / "exported", optimizer_state=True)
    loop.pretrain(config, tmp_path / "run")
    loop.pretrain(carried(config, tmp_path / "exported"), tmp_path / "continued")
    assert_same_end(tmp_path / "continued", tmp_path / "run", 4)


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 6, 8])
def test_a_run_continues_in_the_phase_of_its_step(
    step: int, store: TokenStore, tmp_path: Path
) -> None:
    """Moments and count are reset where the second phase begins, and only there."""
    config = two_phases(store, (6, 6)).replace("log_every_steps", 1)
    stop(config, tmp_path / "run", step)
    run_export(tmp_path / "run", tmp_path / "exported", optimizer_state=True)
    loop.pretrain(config, tmp_path / "run")
    loop.pretrain(carried(config, tmp_path / "exported"), tmp_path / "continued")
    assert_same_end(tmp_path / "continued", tmp_path / "run", 12)


@pytest.mark.slow
def test_another_padding_of_the_vocabulary_changes_nothing(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    """The export has no rows for the hardware; those of a run are zero, as are their moments."""
    state = safetensors.numpy.load_file(source / "exported" / STATE)
    assert state["opt/1/mu/encoder/embeddings/word"].shape == (100, 32)
    unpadded = {"model.pad_vocab_to_multiple_of": 1}
    loop.pretrain(carried(four_steps(store), source / "exported", **unpadded), tmp_path / "run")
    run_export(tmp_path / "run", tmp_path / "out", optimizer_state=True)
    run_export(source / "run", tmp_path / "padded", optimizer_state=True)
    for file in ("model.safetensors", STATE):
        found, wanted = (
            safetensors.numpy.load_file(tmp_path / f / file) for f in ("out", "padded")
        )
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6, err_msg=name)


def test_without_the_key_moments_and_step_start_at_zero(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    config = four_steps(store).replace("init", str(source / "exported"))
    stop(config, tmp_path / "run", 1)
    (record,) = read_records(tmp_path / "run", "train")
    assert (record["step"], record["learning_rate"]) == (1, 0.0)


def test_a_part_that_the_model_lacks_has_no_moments(
    store: TokenStore, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(source / "exported", tmp_path / "model")
    weights = safetensors.numpy.load_file(tmp_path / "model/model.safetensors")
    kept = {k: v for k, v in weights.items() if "pooler" not in k and "seq_relationship" not in k}
    safetensors.numpy.save_file(kept, tmp_path / "model/model.safetensors")
    (tmp_path / "model/SHA256SUMS").unlink()
    stop(carried(four_steps(store), tmp_path / "model"), tmp_path / "run", 3)
    line = (
        "at its step 2, with the moments; new, with random values: next-sentence or sentence-order "
        "head, pooler"
    )
    assert line in capsys.readouterr().out


def test_resuming_without_the_moments_is_refused(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    config = carried(four_steps(store), source / "exported")
    stop(config, tmp_path / "run", 3)
    with pytest.raises(UserError, match=r"cannot resume with another .*config\.init_optimizer"):
        loop.pretrain(config.replace("init_optimizer", "reset"), tmp_path / "run")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def rewritten(change: Callable[[dict], dict], **about: str) -> Callable[[Path], None]:
    """Writes another state, into a folder without digests."""

    def damage(file: Path) -> None:
        state = change(safetensors.numpy.load_file(file))
        safetensors.numpy.save_file(state, file, metadata={"optimizer": "bert_adamw"} | about)
        (file.parent / "SHA256SUMS").unlink()

    return damage


BIAS = "opt/1/nu/mlm/bias"


@pytest.mark.parametrize(
    ("damage", "changes", "message"),
    [
        (Path.unlink, {}, f"model: has no {STATE}; import or export it with --optimizer_state"),
        (flip, {}, f"{STATE}: checksum differs from SHA256SUMS"),
        (lambda f: f.write_bytes(b"{}"), {}, f"{STATE}: checksum differs from SHA256SUMS"),
        (
            None,
            {"optimizer.name": "adamw"},
            "has the moments of bert_adamw, but the run trains with adamw",
        ),
        (None, {"phases[0].steps": 2}, "is at step 2, but config.phases have 2 steps"),
        (None, {"init_vocabulary": "extend"}, "config.init_vocabulary=extend adds embedding rows"),
        (None, {"init_positions": "repeat"}, "config.init_positions=repeat adds embedding rows"),
        (None, {"init": ""}, "config.init_optimizer=carry has no effect without config.init"),
        (
            rewritten(lambda s: {k: v for k, v in s.items() if k != BIAS}),
            {},
            f"{BIAS} is missing, should have [100]",
        ),
        (rewritten(lambda s: s | {BIAS: s[BIAS][1:].copy()}), {}, f"{BIAS} has shape [99]"),
        (rewritten(lambda s: s | {BIAS: s[BIAS] * np.nan}), {}, f"{BIAS} contains NaN"),
        (rewritten(lambda s: s, optimizer="lamb"), {}, "has the moments of lamb"),
        (rewritten(lambda s: s | {"step": np.array(-1, np.int32)}), {}, "not the state of an"),
        (rewritten(lambda s: {BIAS: s[BIAS]}), {}, "not the state of an optimizer of bert-jax"),
    ],
)
def test_a_state_that_does_not_fit_is_one_line(
    damage: Callable | None,
    changes: dict,
    message: str,
    store: TokenStore,
    source: Path,
    tmp_path: Path,
) -> None:
    shutil.copytree(source / "exported", tmp_path / "model")
    if damage:
        damage(tmp_path / "model" / STATE)
    config = carried(four_steps(store), tmp_path / "model", **changes)
    with pytest.raises(UserError) as refused:
        loop.pretrain(config, tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_time_budget_decides_no_schedule_that_has_begun(
    store: TokenStore, source: Path, tmp_path: Path
) -> None:
    config = carried(four_steps(store), source / "exported")
    with pytest.raises(UserError, match="--time_budget sets the steps of a new schedule"):
        bert_jax.pretrain(config, tmp_path / "run", time_budget="1s")
    assert not (tmp_path / "run").exists()
