"""The weights of an export: their dtype, several files, several steps."""

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.flax
from corpus import small_config, small_store
from exported import random_params
from small import model_config

import bert_jax
from bert_jax import cli
from bert_jax.convert import weights
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED, USAGE
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.publish.weight_writer import WeightFormat
from bert_jax.training import loop

CONFIG = model_config()


@pytest.fixture(scope="module")
def params() -> dict:
    return random_params(CONFIG)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(94))]
    return Tokenizer.from_vocab(entries, lowercase=True)


def write(out: Path, params: dict, tokenizer: Tokenizer, **options: object) -> Path:
    export(params, CONFIG, tokenizer, out, card=Card(), form=WeightFormat(**options))
    return out


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_rounded_to_nearest(
    dtype: str, params: dict, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = write(tmp_path / "out", params, tokenizer, dtype=dtype)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    tensors = safetensors.flax.load_file(out / "model.safetensors")
    for name, tensor in weights.to_transformers(params, CONFIG).items():
        np.testing.assert_array_equal(np.asarray(tensors[name]), tensor.astype(kind))
    assert json.loads((out / "config.json").read_text())["dtype"] == dtype
    assert len(bert_jax.load(out).fill_mask("w1 [MASK]")[0]) == 5


def test_a_value_that_float16_cannot_hold_is_named(
    params: dict, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    large = params | {"pair": {"kernel": params["pair"]["kernel"], "bias": np.array([0, -7e4])}}
    with pytest.raises(
        bert_jax.UserError,
        match=r"cls\.seq_relationship\.bias has a value of 70000, which float16 cannot hold",
    ):
        write(tmp_path / "out", large, tokenizer, dtype="float16")
    assert not (tmp_path / "out").exists()
    write(tmp_path / "out", large, tokenizer, dtype="bfloat16")


def test_weights_in_several_files_are_the_same(
    params: dict, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    whole = write(tmp_path / "whole", params, tokenizer)
    parts = write(tmp_path / "parts", params, tokenizer, max_shard_size="20KB")
    files = sorted(parts.glob("model-*-of-*.safetensors"))
    assert len(files) > 3
    index = json.loads((parts / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {file.name for file in files}
    texts = ["w1 w2", "w3"]
    np.testing.assert_array_equal(
        bert_jax.load(parts).encode(texts), bert_jax.load(whole).encode(texts)
    )
    damaged = bytearray(files[1].read_bytes())
    damaged[-1] ^= 1
    files[1].write_bytes(damaged)
    with pytest.raises(bert_jax.UserError, match=f"{files[1].name}: checksum differs"):
        bert_jax.load(parts)


def test_an_export_replaces_one_with_other_files(
    params: dict, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = write(tmp_path / "out", params, tokenizer, max_shard_size="20KB")
    write(out, params, tokenizer)
    assert [path.name for path in out.glob("model*")] == ["model.safetensors"]
    write(out, params, tokenizer, max_shard_size="20KB")
    (out / "model-extra.safetensors").write_bytes(b"mine")
    with pytest.raises(
        bert_jax.UserError, match=r"model-extra\.safetensors: does not belong to the export"
    ):
        write(out, params, tokenizer)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("run")
    config = small_config(small_store(folder / "store"))
    loop.pretrain(
        config.replace({"phases[0].steps": 2, "checkpoint.every_steps": 1}), folder / "run"
    )
    return folder / "run"


@pytest.mark.slow
def test_every_step_has_a_folder(run: Path, tmp_path: Path) -> None:
    words = ["convert", "export", f"--workdir={run}", f"--out={tmp_path / 'all'}"]
    assert cli.main([*words, "--all-steps", "--dtype=bfloat16", "--max_shard_size=9KB"]) == DONE
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["step-1", "step-2"]
    for folder in (tmp_path / "all").iterdir():
        assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
        assert (folder / "model.safetensors.index.json").exists()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--max_shard_size=big"], FAILED, "max_shard_size=big: give a size such as 500MB or 2GB"),
        (["--max_shard_size=0.0GB"], FAILED, "max_shard_size=0.0GB: give a size such as"),
        (["--dtype=float8"], USAGE, "float8"),
        (["--all_steps", "--step=1"], USAGE, "--all_steps and --step exclude each other"),
        (["--all_steps", "--revision=step-1", "--push=me/b"], USAGE, "--all_steps and --revision"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_wrong_option_is_one_line(
    there: bool, flags: list[str], code: int, message: str, run: Path, tmp_path: Path, capsys
) -> None:
    words = ["convert", "export", f"--workdir={run}", f"--out={tmp_path / 'out'}"]
    if there:  # an export
        assert cli.main(words) == DONE
        before = sorted((tmp_path / "out").iterdir())
        capsys.readouterr()
    assert cli.main([*words, *flags]) == code
    line = capsys.readouterr().err
    assert re.search(re.escape(message), line)
    assert line.count("\n") == 1
    assert (tmp_path / "out").exists() == there
    if there:
        assert sorted((tmp_path / "out").iterdir()) == before


@pytest.mark.torch
def test_transformers_loads_parts_in_bfloat16(
    params: dict, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    import torch
    from transformers import BertForPreTraining

    out = write(tmp_path / "out", params, tokenizer, dtype="bfloat16", max_shard_size="20KB")
    model, report = BertForPreTraining.from_pretrained(out, output_loading_info=True)
    assert not any(report.values())
    state = model.state_dict()
    for name, tensor in weights.to_transformers(params, CONFIG).items():
        wanted = torch.from_numpy(np.array(tensor)).to(torch.bfloat16)
        assert torch.equal(state[name].to(torch.bfloat16), wanted)


def test_a_format_names_the_dtypes_there_are() -> None:
    with pytest.raises(UserError, match="dtype=half: give float32, bfloat16, float16"):
        WeightFormat("half")
