"""`convert verify`: two models of any two kinds on the same text."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from exported import make_run, random_params
from hub_server import Hub, serve, use_endpoint
from small import model_config
from tensorflow_bundle import write_google_folder

import bert_jax
from bert_jax import cli
from bert_jax.convert import weights
from bert_jax.convert.compare import Comparison, compare
from bert_jax.convert.sources import read_model
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.exit_codes import DONE, FAILED, USAGE
from bert_jax.publish.export import run_export

PAIR_HEAD = "next-sentence or sentence-order head"
OUTPUTS = [
    "embeddings", "layer 1", "layer 2", "layer 3", "pooler", "masked-language-model head",
    PAIR_HEAD,
]  # fmt: skip
SAME = "no difference (tolerance 1e-05)"
WORD = "bert.embeddings.word_embeddings.weight"
IN_LAYER_2 = "bert.encoder.layer.1.output.dense.bias"  # which transformers counts from 0

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workdir `run` of steps 2 and 4, and `exported`, the newest of them."""
    out = tmp_path_factory.mktemp("verify")
    run, _ = make_run(tokenizer, out)
    run_export(run, out / "exported")
    return out


@pytest.fixture
def other(folder: Path, tmp_path: Path) -> Path:
    """The export as another program would have written it, to be changed."""
    shutil.copytree(folder / "exported", tmp_path / "other")
    (tmp_path / "other/SHA256SUMS").unlink()
    return tmp_path / "other"


def change(model: Path, how: Callable[[Tensors], Tensors]) -> None:
    file = model / "model.safetensors"
    safetensors.numpy.save_file(how(safetensors.numpy.load_file(file)), file)


def add(name: str, value: object) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: (tensors[name] + value).astype(np.float32)}


def verify(*words: object) -> int:
    return cli.main(["convert", "verify", *map(str, words)])


def table_of(said: str) -> dict[str, float]:
    """The rows of the printed table."""
    lines = said.partition("output\n")[2].partition("\nweights:")[0].splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line.startswith(" ")]
    return {name: float(value) for value, name in rows}


@pytest.mark.slow
def test_a_run_is_the_same_as_its_export(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert verify(folder / "run", folder / "exported") == DONE
    said = capsys.readouterr().out
    assert list(table_of(said).items()) == [(name, 0) for name in OUTPUTS]
    assert said.splitlines()[0] == "5 texts, 131 tokens"
    assert said.splitlines()[-2:] == ["weights: all equal", SAME]


def test_another_step_differs_from_the_embeddings_on(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    assert verify(f"{folder}/run@2", folder / "exported") == FAILED
    assert "differs from the embeddings on: " in capsys.readouterr().out.splitlines()[-1]
    assert verify(f"{folder}/run@4", folder / "exported") == DONE


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_a_tensorflow_checkpoint_is_the_same_as_its_import(
    packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config, source = model_config(), tmp_path / "released"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(94))]
    state = weights.to_transformers(random_params(config), config)
    write_google_folder(source, config, state, entries)
    if packed:
        with zipfile.ZipFile(tmp_path / "released.zip", "w") as archive:
            for file in source.iterdir():
                archive.write(file, f"released/{file.name}")
        source = tmp_path / "released.zip"
    assert cli.main(["convert", "import", f"--from={source}", f"--out={tmp_path / 'out'}"]) == DONE
    (tmp_path / "text").write_text("w1 w2 w3\n\nw4 w5\tw6 w7\n")
    capsys.readouterr()
    assert verify(source, tmp_path / "out", f"--text={tmp_path / 'text'}") == DONE
    said = capsys.readouterr().out
    assert table_of(said) == dict.fromkeys(OUTPUTS, 0)
    casing = f"{source}/vocab.txt: nothing beside it says do_lower_case: text is lower-cased"
    assert said.startswith(casing), "a zip names what it holds, not where it was unpacked"
    assert "\n2 texts, 12 tokens\n" in said


def test_rows_without_an_entry_that_one_model_lacks_are_no_difference(
    folder: Path, other: Path, capsys: pytest.CaptureFixture
) -> None:
    """As of a released model, and of a run that continues it."""
    values = json.loads((other / "config.json").read_text())
    entries = values["vocab_size"]
    (other / "config.json").write_text(json.dumps(values | {"vocab_size": entries + 3}))

    def wider(tensors: Tensors) -> Tensors:
        return {
            name: np.pad(each, [(0, 3), *[(0, 0)] * (each.ndim - 1)])
            if len(each) == entries
            else each
            for name, each in tensors.items()
        }

    change(other, wider)
    assert verify(folder / "exported", other) == verify(other, folder / "exported") == DONE
    assert capsys.readouterr().out.splitlines()[-2:] == ["weights: all equal", SAME]


def test_a_model_on_the_hub_is_compared(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    files = {file.name: file.read_bytes() for file in (folder / "exported").iterdir()}
    with serve(Hub({"org/bert": {"main": files, "7": files}})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        assert verify("hf:org/bert@7", folder / "run") == DONE  # 7 is no step
        assert verify("hf:org/none", folder / "run") == FAILED
    assert "hf:org/none: no such model" in capsys.readouterr().err


def test_the_first_layer_that_differs_is_named(
    folder: Path, other: Path, capsys: pytest.CaptureFixture
) -> None:
    change(other, add(IN_LAYER_2, np.eye(32)[5] / 4))
    assert verify(folder / "run", other) == FAILED
    said = capsys.readouterr().out
    table = table_of(said)
    assert [name for name, value in table.items() if value == 0] == OUTPUTS[:2]
    weights_line, verdict = said.splitlines()[-2:]
    where = "encoder.layers.mlp.down.bias of layer 2"
    assert weights_line == f"weights: 1 of 50 tensors not equal, most {where}: 0.25"
    assert verdict == f"differs from layer 2 on: {table['layer 2']:.2g} (tolerance 1e-05)"
    assert verify(folder / "run", other, "--tolerance=1e3") == DONE
    most = max(table.values())
    assert f"the same to {most:.2g} (tolerance 1000)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("bert.pooler.dense.bias", "differs in the pooler: "),
        ("cls.predictions.bias", "differs in the masked-language-model head: "),
        ("cls.seq_relationship.bias", f"differs in the {PAIR_HEAD}: "),
    ],
)
def test_a_head_that_differs_is_named(
    name: str, verdict: str, folder: Path, other: Path, capsys: pytest.CaptureFixture
) -> None:
    change(other, add(name, 0.5))
    assert verify(folder / "exported", other) == FAILED
    assert verdict in capsys.readouterr().out.splitlines()[-1]


def test_a_value_is_that_of_the_states_relative_to_the_first_model(
    folder: Path, other: Path, tokenizer: Tokenizer
) -> None:
    change(other, add(IN_LAYER_2, 0.5))
    word = next(w for i in range(400) if (w := tokenizer.token(i)).isalpha())
    models = [read_model(str(model)) for model in (folder / "exported", other)]
    value = dict(compare(*models, [(word,)]).outputs)["layer 3"]
    ours, theirs = (bert_jax.load(m.source).hidden_states(word)[0] for m in models)
    assert len(ours) == 3  # so none is masked
    wanted = np.abs(ours - theirs).max() / np.abs(ours).max()
    assert np.abs(ours).max() > 1
    assert value == pytest.approx(wanted, rel=1e-4)


def test_what_only_one_model_has_is_named(
    folder: Path, other: Path, capsys: pytest.CaptureFixture
) -> None:
    left_out = ("bert.pooler.", "cls.seq_relationship.")
    change(other, lambda t: {n: v for n, v in t.items() if not n.startswith(left_out)})
    change(other, lambda t: t | {"classifier.weight": t[IN_LAYER_2], "x": t[IN_LAYER_2]})
    assert verify(other, folder / "exported") == DONE
    said = capsys.readouterr().out
    assert list(table_of(said)) == [*OUTPUTS[:4], OUTPUTS[5]]
    assert f"\nonly {folder / 'exported'} has: pooler, {PAIR_HEAD}\n" in said
    assert f"only {other}" not in said
    assert f"\nnot compared: classifier.weight and 1 more of {other}\n" in said


def test_padding_is_no_token(folder: Path, other: Path, capsys: pytest.CaptureFixture) -> None:
    """Its states differ, but no token reads them; it has a logit, too, which differs."""
    change(other, add(WORD, np.eye(len(safetensors_of(other)[WORD]))[:, :1]))
    (folder / "text").write_text("short\na longer text than that\n")
    assert verify(folder / "run", other, f"--text={folder / 'text'}") == FAILED
    said = capsys.readouterr().out
    assert [name for name, value in table_of(said).items() if value] == [OUTPUTS[5]]
    assert "weights: 1 of 50 tensors not equal, most encoder.embeddings.word: 1\n" in said


def safetensors_of(model: Path) -> Tensors:
    return safetensors.numpy.load_file(model / "model.safetensors")


@pytest.mark.parametrize("both", [False, True])
def test_what_is_not_finite_is_a_difference(
    both: bool, folder: Path, other: Path, capsys: pytest.CaptureFixture
) -> None:
    change(other, add("bert.encoder.layer.1.output.dense.weight", 3e38))
    assert verify(other if both else folder / "run", other, "--tolerance=1") == FAILED
    assert capsys.readouterr().out.splitlines()[-1] == (
        "differs from layer 2 on: NaN or infinite (tolerance 1)"
    )


def outputs_of(found: Comparison) -> list[str]:
    return [name for name, _ in found.outputs]


@pytest.mark.slow
def test_two_runs_are_compared_with_the_head_that_no_class_has(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    choices = {"pairing": "single", "masking": "span", "span_boundary": True}
    run, _ = make_run(tokenizer, tmp_path, model={"norm_position": "pre"}, **choices)
    model, older = read_model(str(run)), read_model(f"{run}@2")
    found = compare(model, older, [("hello",)])
    layers = [f"layer {i}" for i in (1, 2, 3)]
    heads = ["masked-language-model head", "span-boundary head"]
    assert outputs_of(found) == ["embeddings", *layers, "final LayerNorm", *heads]
    assert all(value > 1e-2 for _, value in found.outputs)
    same = compare(model, model, [("hello",)])
    assert not any(value for _, value in same.outputs)


def test_other_tokens_are_one_line(
    folder: Path, other: Path, capsys: pytest.CaptureFixture
) -> None:
    settings = json.loads((other / "tokenizer_config.json").read_text())
    settings["do_lower_case"] = False
    (other / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "lines").write_text("the same\nHello, the other\n")
    assert verify(folder / "run", other, f"--text={folder / 'lines'}") == FAILED
    line = capsys.readouterr().err
    assert f"{other} split 'Hello, the other' into different tokens" in line
    assert line.count("\n") == 1


def test_another_architecture_is_one_line(
    folder: Path, other: Path, capsys: pytest.CaptureFixture
) -> None:
    values = json.loads((other / "config.json").read_text())
    values |= {"num_attention_heads": 2, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.3}
    (other / "config.json").write_text(json.dumps(values))
    assert verify(folder / "run", other) == FAILED
    line = capsys.readouterr().err
    assert "architecture (num_attention_heads 4 and 2, hidden_act gelu and gelu_tanh); give" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run"], USAGE, "give two models to compare, not 1"),
        (["run", "exported", "third"], USAGE, "give two models to compare, not 3"),
        (
            ["run", "exported", "--tolerance=nan"],
            USAGE,
            "flag --tolerance=nan: not a finite number",
        ),
        (
            ["run", "exported", "--tolerance=-1"],
            USAGE,
            "flag --tolerance=-1: -1.0 is not a non-negative number",
        ),
        (["run", "nowhere"], FAILED, "nowhere: no such folder"),
        (["run@3", "run"], FAILED, "run: no checkpoint of step 3; complete steps: 2, 4"),
        (["exported@3", "run"], FAILED, "exported@3: no such folder"),
        (["run", "x://y"], FAILED, "unknown protocol"),
        (["run", "latin"], FAILED, "latin: a file, but not a zip"),
        (["run", "cut"], FAILED, f"cut: the weights have no {IN_LAYER_2}"),
        (["run", "run", "--text=nowhere"], FAILED, "nowhere: cannot be read"),
        (["run", "run", "--text=run"], FAILED, "run: cannot be read (Is a directory)"),
        (["run", "run", "--text=/dev/zero"], FAILED, "/dev/zero: not a regular file"),
        (["run", "run", "--text=empty"], FAILED, "empty: has no text"),
        (["run", "run", "--text=latin"], FAILED, "latin: not UTF-8 at byte 3"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    code: int,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(folder)
    Path("empty").write_text("\n \n")
    Path("latin").write_bytes("café".encode("latin-1"))
    shutil.copytree("exported", "cut", dirs_exist_ok=True)
    Path("cut/SHA256SUMS").unlink()
    change(Path("cut"), lambda t: {n: v for n, v in t.items() if n != IN_LAYER_2})
    assert verify(*words) == code
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not said.out


@pytest.mark.torch
@pytest.mark.filterwarnings("default")  # transformers' own deprecations are not ours
def test_differences_are_those_of_the_hidden_states_of_transformers(
    folder: Path, other: Path
) -> None:
    import torch
    from transformers import AutoTokenizer, BertForPreTraining

    change(other, add(IN_LAYER_2, np.eye(32)[5]))
    text = "hello world, naive cafe"
    models = [read_model(str(model)) for model in (folder / "exported", other)]
    found = dict(compare(*models, [(text,)]).outputs)
    tokenizer = AutoTokenizer.from_pretrained(other)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    ids[0, 3:-1:7] = tokenizer.mask_token_id
    outputs = []
    for model in models:
        theirs = BertForPreTraining.from_pretrained(model.source).eval()
        with torch.no_grad():
            out = theirs(input_ids=ids, output_hidden_states=True)
            pooled = theirs.bert(input_ids=ids).pooler_output
        outputs.append([*out.hidden_states, pooled, out.prediction_logits])
        outputs[-1].append(out.seq_relationship_logits)
    for name, ours, changed in zip(OUTPUTS, *outputs, strict=True):
        wanted = (ours - changed).abs().max() / max(1.0, ours.abs().max())
        assert found[name] == pytest.approx(float(wanted), rel=1e-3, abs=1e-6), name
