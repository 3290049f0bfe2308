"""Folders of sentence-transformers: pools, layers and prompts, read, applied, written, refused."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from exported import TEXTS, random_params
from small import model_config

import bert_jax
from bert_jax import cli
from bert_jax.api.embed import Settings, embed
from bert_jax.config.config_files import load as config_of
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.finetune.task_tokenizer import find_tokenizer
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.training.resolve import find_architecture
from bert_jax.workdir.layout import Workdir

OLD = "sentence_transformers.models"
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling",
    "Dense": "sentence_transformers.base.modules.dense",
    "Normalize": "sentence_transformers.base.modules.normalize",
}
KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
SOME = [TEXTS[0], TEXTS[2], "", TEXTS[8]]
WIDTH = model_config().hidden_size
RANDOM = np.random.default_rng(3)
LINEAR = {
    "linear.weight": RANDOM.normal(size=(5, WIDTH)).astype(np.float32),
    "linear.bias": RANDOM.normal(size=5).astype(np.float32),
}
RESIDUAL = {
    "linear.weight": RANDOM.normal(size=(7, WIDTH)).astype(np.float32),
    "residual.weight": RANDOM.normal(size=(7, WIDTH)).astype(np.float32),
}


@pytest.fixture(scope="module")
def plain(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers writes it."""
    config = model_config()
    out = tmp_path_factory.mktemp("model") / "plain"
    entries = [tokenizer.token(i) for i in range(tokenizer.vocab_size)][: config.vocab_size]
    export(random_params(config), config, Tokenizer.from_vocab(entries), out, card=Card(origin="x"))
    (out / "SHA256SUMS").unlink()
    return out


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "encoder"))


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value))


def old_pooling(*pools: str, **more: object) -> dict[str, object]:
    keys = {key: pool in pools for pool, key in KEYS.items()}
    return {"word_embedding_dimension": WIDTH, **keys, **more}


def new_pooling(*pools: str, **more: object) -> dict[str, object]:
    return {
        "embedding_dimension": WIDTH, "pooling_mode": pools[0] if len(pools) == 1 else pools,
        "include_prompt": True, **more,
    }  # fmt: skip


def add_parts(
    folder: Path,
    *parts: tuple[str, Mapping[str, Any], Mapping[str, np.ndarray]],
    types: Mapping[str, str] | None = None,
) -> None:
    """Writes modules.json and the folders of parts: class, settings and weights of each."""
    listed = [("Transformer", ""), *((k, f"{n}_{k}") for n, (k, *_) in enumerate(parts, 1))]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"{(types or {}).get(kind, OLD)}.{kind}"}
        for n, (kind, path) in enumerate(listed)
    ]
    write(folder, "modules.json", modules)
    for (_, values, tensors), (_, path) in zip(parts, listed[1:], strict=True):
        if values:
            write(folder, f"{path}/config.json", values)
        if tensors:
            safetensors.numpy.save_file(dict(tensors), folder / path / "model.safetensors")


def pooled(states: np.ndarray, pool: str, skipped: int = 0) -> np.ndarray:
    """One pool of a text's states, [tokens, H]."""
    numbers, states = np.arange(1, len(states) + 1)[skipped:], states[skipped:]
    match pool:
        case "cls":
            return states[0]
        case "lasttoken":
            return states[-1]
        case "max":
            return states.max(0)
        case "mean":
            return states.mean(0)
        case "mean_sqrt_len_tokens":
            return states.sum(0) / np.sqrt(len(states))
    return (states * numbers[:, None]).sum(0) / numbers.sum()


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def dense(name: str = "Tanh", width: int = 5, **more: object) -> dict[str, object]:
    module = "linear" if name == "Identity" else "activation"
    return {
        "in_features": WIDTH, "out_features": width, "bias": True,
        "activation_function": f"torch.nn.modules.{module}.{name}", **more,
    }  # fmt: skip


CASES: dict[str, tuple[list, Mapping[str, str] | None, Callable[[np.ndarray], np.ndarray]]] = {
    "every pool, in the order of 3.4": (
        [("Pooling", old_pooling(*KEYS), {})],
        None,
        lambda x: np.concatenate([pooled(x, pool) for pool in KEYS]),
    ),
    "two pools, in the order of 6": (
        [("Pooling", new_pooling("mean", "cls"), {}), ("Normalize", {}, {})],
        NEW,
        lambda x: unit(np.concatenate([pooled(x, "mean"), pooled(x, "cls")])),
    ),
    "a dense layer": (
        [("Pooling", old_pooling("cls"), {}), ("Dense", dense(), LINEAR), ("Normalize", {}, {})],
        None,
        lambda x: unit(np.tanh(LINEAR["linear.weight"] @ x[0] + LINEAR["linear.bias"])),
    ),
    "a residual": (
        [
            ("Pooling", new_pooling("mean"), {}),
            ("Dense", dense("Identity", 7, bias=False, use_residual=True), RESIDUAL),
        ],
        NEW,
        lambda x: sum(tensor @ x.mean(0) for tensor in RESIDUAL.values()),
    ),
}


DOUBLED = {"linear.weight": RANDOM.normal(size=(4, 2 * WIDTH)).astype(np.float32)}
CASES["a dense layer on two pools"] = (
    [
        ("Pooling", new_pooling("cls", "max"), {}),
        ("Dense", dense("ReLU", 4, in_features=2 * WIDTH, bias=False), DOUBLED),
    ],
    NEW,
    lambda x: np.maximum(DOUBLED["linear.weight"] @ np.concatenate([x[0], x.max(0)]), 0),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_the_parts_before_and_after_an_import(case, folder, tmp_path):
    parts, types, expected = CASES[case]
    states = bert_jax.load(folder).hidden_states(SOME)
    wanted = np.stack([expected(x) for x in states])
    add_parts(folder, *parts, types=types)
    found = bert_jax.load(folder).encode(SOME)
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={tmp_path}/out"]) == DONE
    np.testing.assert_array_equal(bert_jax.load(tmp_path / "out").encode(SOME), found)
    again = ["convert", "import", f"--from={tmp_path}/out", f"--out={tmp_path}/again"]
    assert cli.main(again) == DONE
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out")


def files_of(folder: Path) -> dict[str, bytes]:
    """Without the card, which names the source, and without weights, which vectors show."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.suffix in (".json", ".txt")
    }


def test_a_pool_that_is_asked_for_is_taken_and_an_unknown_layer_of_it_refused(folder):
    plain = bert_jax.load(folder).encode(SOME, pooling="mean")
    add_parts(folder, ("Pooling", old_pooling("cls"), {}), ("Normalize", {}, {}))
    model = bert_jax.load(folder)
    np.testing.assert_array_equal(model.encode(SOME, pooling="mean"), plain)
    with pytest.raises(UserError, match="cls pooling, normalization use its last layer"):
        model.encode(SOME, layers="-2:")


def test_embed_writes_the_vectors_of_the_folder(folder, tmp_path):
    add_parts(folder, ("Pooling", old_pooling("cls"), {}), ("Normalize", {}, {}))
    lines = [text for text in SOME if "\n" not in text]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    embed(folder, tmp_path / "lines.txt", tmp_path / "own.npy", Settings())
    own = np.load(tmp_path / "own.npy")
    np.testing.assert_array_equal(own, bert_jax.load(folder).encode(lines))
    embed(folder, tmp_path / "lines.txt", tmp_path / "mean.npy", Settings(pooling="mean"))
    assert not np.allclose(np.load(tmp_path / "mean.npy"), own)


def test_texts_are_read_as_the_folder_says(folder, tmp_path):
    """Its prompt, its longest text, capital letters, the first numbers; also after an import."""
    plain = bert_jax.load(folder)
    pooling = new_pooling("mean", "lasttoken", include_prompt=False)
    add_parts(folder, ("Pooling", pooling, {}), types=NEW)
    prompt = TEXTS[2][:3]
    about = {"prompts": {"query": prompt, "other": "x"}, "default_prompt_name": "query"}
    about |= {"truncate_dim": WIDTH + 3, "model_type": "SentenceTransformer"}
    write(folder, "config_sentence_transformers.json", about)
    write(folder, "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    longest = 12
    skipped = len(plain.tokens(prompt)[0].ids) - 1
    wanted = []
    for text in SOME:
        ids = plain.tokens(f"{prompt}{text}")[0].ids
        cut = [*ids[: longest - 1], ids[-1]] if len(ids) > longest else ids
        states = states_of(plain, cut)
        vector = [pooled(states, pool, skipped) for pool in ("mean", "lasttoken")]
        wanted.append(np.concatenate(vector)[: WIDTH + 3])
    model = bert_jax.load(folder)
    np.testing.assert_allclose(model.encode(SOME), np.stack(wanted), atol=1e-5, rtol=0)
    assert max(len(text.ids) for text in model.tokens(SOME)) == longest
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={tmp_path}/out"]) == DONE
    np.testing.assert_array_equal(bert_jax.load(tmp_path / "out").encode(SOME), model.encode(SOME))


def test_a_prompt_after_which_no_text_is_read_is_refused(folder):
    """All vectors would be those of the prompt."""
    add_parts(folder, ("Pooling", old_pooling("mean"), {}))
    about = {"prompts": {"query": "x " * 9, "long": "x " * 10}, "default_prompt_name": None}
    write(folder, "config_sentence_transformers.json", about)
    write(folder, "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False})
    model = bert_jax.load(folder)
    model.encode("hello", prompt_name="query")
    for pooling in (None, "cls"):
        with pytest.raises(UserError, match="a prompt that fills the 10 tokens of a text"):
            model.encode("hello", prompt_name="long", pooling=pooling)


def states_of(model: bert_jax.Model, ids: list[int]) -> np.ndarray:
    """The last states of tokens that no text has."""
    from bert_jax.api.text_rows import text_rows

    (rows,) = text_rows([ids], len(ids), model.tokenizer.special.pad, 1, devices=1)
    last = (model.config.num_hidden_layers,)
    return np.asarray(model._states(model.params, rows, layers=last, join="concat"))[0, : len(ids)]


def test_capital_letters_are_lowered_before_a_cased_vocabulary(folder):
    cased = Tokenizer.from_vocab(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Big", "big"], lowercase=False
    )
    (folder / "tokenizer.json").write_bytes(cased.json)
    (folder / "vocab.txt").unlink()
    write(folder, "tokenizer_config.json", {"do_lower_case": False})
    add_parts(folder, ("Pooling", old_pooling("mean"), {}))
    assert bert_jax.load(folder).tokens("Big [MASK]")[0].ids == [2, 5, 4, 3]
    write(folder, "sentence_bert_config.json", {"max_seq_length": None, "do_lower_case": True})
    assert bert_jax.load(folder).tokens("Big [MASK]")[0].ids == [2, 6, 4, 3]


def test_the_longest_text_is_that_of_the_tokenizer_where_no_other_is_given(folder):
    """As release 6 writes it."""
    add_parts(folder, ("Pooling", new_pooling("mean"), {}), types=NEW)
    modality = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    values = {
        "transformer_task": "feature-extraction", "modality_config": modality,
        "module_output_name": "token_embeddings",
    }  # fmt: skip
    write(folder, "sentence_bert_config.json", values)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder, "tokenizer_config.json", settings | {"model_max_length": 9})
    assert len(bert_jax.load(folder).tokens("x y " * 20)[0].ids) == 9


def test_an_encoder_in_a_folder_of_its_own_is_read(plain, tmp_path, capsys):
    """As releases before 2 write it."""
    folder = tmp_path / "encoder"
    shutil.copytree(plain, folder / "0_Transformer")
    write(folder, "config.json", {"__version__": "0.4.1"})
    add_parts(folder, ("Pooling", {k: v for k, v in old_pooling("max").items() if "w" in k}, {}))
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    write(folder, "modules.json", modules)
    write(folder / "0_Transformer", "sentence_bert_config.json", {"max_seq_length": 128})
    write(folder, "1_Pooling/config.json", old_pooling("max"))
    states = bert_jax.load(plain).hidden_states(SOME)
    wanted = np.stack([x.max(0) for x in states])
    np.testing.assert_allclose(bert_jax.load(folder).encode(SOME), wanted, atol=1e-6, rtol=0)
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={tmp_path}/out"]) == DONE
    assert (tmp_path / "out/1_Pooling/config.json").exists()
    assert find_architecture(str(folder)) == find_architecture(str(plain))
    task = config_of("glue", {"init": str(folder), "task.name": "sst2"})
    found = find_tokenizer(task, Workdir.open(tmp_path / "run"), in_words=False)
    assert found.digest == bert_jax.load(plain).tokenizer.digest
    capsys.readouterr()
    assert cli.main(["convert", "verify", str(folder), str(plain)]) == DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "not compared: max pooling of the sentence encoder" in said
    assert said.count("not compared") == 1


def parts(*kinds: str) -> Callable[[Path], None]:
    """modules.json with these classes, without their folders."""

    def change(folder: Path) -> None:
        add_parts(folder, *((kind, {}, {}) for kind in kinds))

    return change


def pooling(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        add_parts(folder, ("Pooling", values, {}))

    return change


def layer(weights: Mapping[str, np.ndarray] = LINEAR, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        mean = ("Pooling", old_pooling("mean"), {})
        add_parts(folder, mean, ("Dense", dense() | values, weights))

    return change


def file(name: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        add_parts(folder, ("Pooling", old_pooling("cls"), {}))
        write(folder, name, value)

    return change


def beside(kind: str, name: str) -> Callable[[Path], None]:
    """A part of this class with one more file in its folder."""
    more = [(kind, dense(), LINEAR)] if kind == "Dense" else [(kind, {}, {})]

    def change(folder: Path) -> None:
        values = old_pooling("mean")
        add_parts(folder, ("Pooling", values, {}), *(more if kind != "Pooling" else []))
        write(folder, f"{1 if kind == 'Pooling' else 2}_{kind}/{name}", {})

    return change


ABOUT, ENCODER = "config_sentence_transformers.json", "sentence_bert_config.json"
OUTSIDE = {"type": f"{OLD}.Transformer", "path": ""}, {"type": f"{OLD}.Pooling", "path": "../x"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (parts("CNN", "Pooling"), "the second module is CNN; bert-jax needs a Pooling"),
        (parts("Dense", "Pooling"), "the second module is Dense"),
        (parts(), "the second module is nothing"),
        (
            lambda f: add_parts(f, ("Pooling", old_pooling("cls"), {}), ("LSTM", {}, {})),
            "module LSTM is not supported there; valid: Pooling, Dense, Normalize",
        ),
        (file("modules.json", {}), "not a list of modules"),
        (file("modules.json", [*OUTSIDE]), "path='../x' is not a folder beside it"),
        (file("modules.json", [{"type": "own.Model", "path": ""}]), "needs code of its own"),
        (
            file("modules.json", [{"type": f"{OLD}.CLIPModel", "path": ""}]),
            "the first module is CLIPModel",
        ),
        (pooling(), "config.json: missing"),
        (pooling(**old_pooling("cls", word_embedding_dimension=7)), "dimension=7, but the encoder"),
        (
            pooling(word_embedding_dimension=WIDTH, pooling_mode_cls_token=True),
            "mean_tokens is mis",
        ),
        (pooling(pooling_mode_attention=True), "a pool that bert-jax does not compute"),
        (pooling(**new_pooling("median")), "pooling_mode='median'; bert-jax computes cls, max"),
        (pooling(**old_pooling(pooling_mode_cls_token=1)), "cls_token=1 should be true or false"),
        (layer(activation_function="own.Swish"), "'own.Swish' is not supported; only Identity"),
        (layer(activation_function="torch.nn.modules.activation.Mish"), "Mish' is not supported"),
        (layer(activation_function="torch.nn.evil.Tanh"), "torch.nn.evil.Tanh' is not supported"),
        (layer(module_input_name="token_embeddings"), "a layer on something other than the vector"),
        (layer(in_features=3), "in_features=3, out_features=5, but the"),
        (
            layer(in_features=float(WIDTH)),
            f"in_features={WIDTH}.0, out_features=5 should be whole numbers above 0",
        ),
        (layer(out_features=True), "out_features=True should be whole"),
        (layer(out_features=5.0), "out_features=5.0 should be whole"),
        (layer(out_features=0), "out_features=0 should be whole"),
        (
            lambda f: add_parts(
                f, ("Pooling", old_pooling("cls", "mean"), {}), ("Dense", dense(), LINEAR)
            ),
            f"in_features={WIDTH}, out_features=5, but the input has {2 * WIDTH} dim",
        ),
        (layer(use_residual=True), "residual.weight has none, by config.json it should have shape"),
        (layer(bias=False), "linear.bias has shape [5], by config.json it should have none"),
        (layer({k: v * np.nan for k, v in LINEAR.items()}), "NaN or infinite"),
        (layer({}), "model.safetensors: missing"),
        (file(ENCODER, {"max_seq_length": "long"}), "max_seq_length='long' should be 3 tokens"),
        (file(ENCODER, {"transformer_task": "fill-mask"}), "transformer_task='fill-mask' is not"),
        (file(ENCODER, {"query_length": 32}), "query_length=32 is not supported"),
        (file(ENCODER, {"model_args": {"a": 1}}), "model_args={'a': 1} is not supported"),
        (file(ABOUT, {"model_type": "SparseEncoder"}), "model_type='SparseEncoder' is not supp"),
        (file(ABOUT, {"default_prompt_name": "q"}), "default_prompt_name='q' is not one of"),
        (file(ABOUT, {"default_prompt_name": ["q"]}), "default_prompt_name=['q'] is not one of"),
        (file(ABOUT, {"prompts": {"q": 1}}), "should be texts by name"),
        (file(ABOUT, {"truncate_dim": 0}), "truncate_dim=0 should be 1 or more"),
        (beside("Pooling", "extra_config.json"), "extra_config.json: not a file that bert-jax"),
        (beside("Pooling", "model.safetensors"), "1_Pooling/model.safetensors: weights, which"),
        (
            beside("Pooling", "1_Dense/config.json"),
            "1_Pooling/1_Dense: looks like a part of the model",
        ),
        (beside("Normalize", "pytorch_model.bin"), "2_Normalize/pytorch_model.bin: weights, whi"),
        (beside("Dense", "scale.json"), "2_Dense/scale.json: not a file that bert-jax knows"),
        (beside("Dense", "gate.safetensors"), "2_Dense/gate.safetensors: weights that a layer"),
        *(
            (
                lambda f, where=where: add_parts(
                    f,
                    ("Pooling", old_pooling("cls"), {}),
                    ("Normalize", {}, {}),
                    types={"Normalize": f"sentence_transformers.{where}"},
                ),
                f"'sentence_transformers.{where}.Normalize' is in no release",
            )
            for where in ("evil", "models.evil", "base.modules.evil", "evil.modules.normalize")
        ),
        (file("2_Dense/config.json", dense()), "looks like a part of the model, but no modules"),
    ],
)
def test_what_cannot_be_applied_is_one_line(change, message, folder, tmp_path, capsys):
    change(folder)
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={tmp_path}/out"]) == FAILED
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_parts_without_modules_json_are_refused(folder):
    write(folder, "1_Pooling/config.json", old_pooling("cls"))
    with pytest.raises(
        UserError, match="1_Pooling: looks like a part of the model, but no modules"
    ):
        bert_jax.load(folder)


def test_a_changed_part_of_an_import_is_noticed(folder, tmp_path):
    add_parts(folder, ("Pooling", old_pooling("cls"), {}), ("Dense", dense(), LINEAR))
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={tmp_path}/out"]) == DONE
    for name, change in (
        ("1_Pooling/config.json", b" "), ("2_Dense/model.safetensors", b""), ("modules.json", b" "),
    ):  # fmt: skip
        data = (tmp_path / "out" / name).read_bytes()
        (tmp_path / "out" / name).write_bytes(data[:-1] + change)
        with pytest.raises(UserError, match="checksum differs from SHA256SUMS"):
            bert_jax.load(tmp_path / "out")
        (tmp_path / "out" / name).write_bytes(data)
