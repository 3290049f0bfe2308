"""ALBERT: settings, both heads of its pretraining, and the folders of google-research/albert."""

import dataclasses
import json
import unicodedata
from pathlib import Path

import golden_case as cases
import jax
import numpy as np
import pytest
import safetensors.numpy
from docs_lines import docs_lines
from exported import random_params
from golden_case import CASES
from late_import import LateImport
from layout_models import layout_config
from parity_steps import RECIPE, difference, our_steps
from small import COMPUTE, run_config
from tensorflow_bundle import albert_tensors, write_bundle

import bert_jax
from bert_jax import cli
from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.hf_config import from_config_json, to_config_json
from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.data_pipeline.tokenizer.sentencepiece_model import convert_albert
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.total import all_sums

torch = LateImport("torch")
parity = LateImport("torch_parity", reason="needs transformers, too")

BOTH = ("mlm", "sop")
CONFIG = layout_config("albert", num_hidden_groups=2, num_hidden_layers=4)
VALUES = json.loads(json.dumps(to_config_json(CONFIG, pad_token_id=0, heads={"mlm", "pair"})))


def read(values: dict) -> ModelConfig:
    return from_config_json(values, "config.json")


def test_its_settings_are_written_and_read():
    assert (VALUES["embedding_size"], VALUES["num_hidden_groups"]) == (16, 2)
    assert VALUES["architectures"] == ["AlbertForPreTraining"]
    assert read(VALUES) == CONFIG
    assert read(VALUES | {"hidden_act": "gelu_new"}) == CONFIG
    equal = layout_config("albert", embedding_size=32)
    assert read(to_config_json(equal, pad_token_id=0)) == equal


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inner_group_num": 2}, "inner_group_num=2 is not supported; only 1"),
        ({"num_hidden_groups": 3}, "num_hidden_layers=4 is not a multiple of num_hidden_groups=3"),
        ({"num_hidden_groups": 0}, "num_hidden_groups=0: AlbertModel needs it"),
        ({"embedding_size": 0}, "embedding_size=0: AlbertModel needs it"),
        ({"embedding_size": None}, "embedding_size=None should be int"),
        ({"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"ln_type": "preln"}, "ln_type='preln' is not supported: LayerNorm in other places"),
    ],
)
def test_what_our_models_do_not_compute_is_one_line(change, says):
    with pytest.raises(UserError, match=rf"^config.json: [^\n]*{says}[^\n]*$"):
        read(VALUES | change)


@pytest.mark.parametrize("name", ["num_hidden_groups", "embedding_size"])
def test_a_model_without_its_form_is_refused(name):
    config = dataclasses.replace(CONFIG, **{name: 0})
    with pytest.raises(UserError, match=f"config.model.{name}=0: AlbertModel needs it"):
        to_config_json(config, pad_token_id=0)


def test_groups_are_stacked_and_named():
    params = random_params(CONFIG, BOTH)
    assert len(params["encoder"]["layers"]["mlp"]["up"]["kernel"]) == 2
    tensors = weights.to_transformers(params, CONFIG)
    groups = {name.split(".")[3] for name in tensors if "albert_layer_groups" in name}
    assert groups == {"0", "1"}
    assert weights.leftover(tensors, CONFIG) == []
    back = weights.from_transformers(tensors, CONFIG)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    bare = {name.removeprefix("albert."): tensor for name, tensor in tensors.items()}
    assert weights.leftover(bare, CONFIG) == []


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_both_heads_are_those_of_transformers():
    """Logits, the sum of the losses, and three optimizer steps."""
    with jax.default_matmul_precision("highest"):
        params = random_params(CONFIG, BOTH)
        batches = [cases.batch(CASES["tiny"], number) for number in range(cases.STEPS)]
        theirs = parity.theirs_of(CONFIG, params)
        assert type(theirs).__name__ == "AlbertForPreTraining"
        model = nnx_merge(params)
        outputs = model(batches[0])
        corpus = Corpus(("text",), np.zeros(CONFIG.vocab_size, np.float32))
        with torch.no_grad():
            loss, logits = parity.outputs_of(theirs, CONFIG, batches[0])
            pair = theirs(**parity.inputs_of(CONFIG, batches[0])).sop_logits
        used = batches[0]["masked_weights"] > 0
        assert difference(outputs["mlm"][used], logits.numpy()) <= 1e-5
        assert difference(outputs["sop"][:, 0], pair.numpy()) <= 1e-5
        assert difference(all_sums(outputs, batches[0], corpus)[0], loss.numpy()) <= 1e-5
        config = run_config(recipe=RECIPE)
        data = dataclasses.replace(config.data, pairing="sop")
        config = dataclasses.replace(config, model=CONFIG, data=data)
        losses, after = our_steps(config, BOTH, params, batches)
        assert difference(losses, parity.their_steps(theirs, config, batches)) <= 1e-5
        after, reference = weights.to_transformers(after, CONFIG), theirs.state_dict()
        for name, tensor in after.items():
            assert difference(tensor, reference[name]) <= 1e-5, name


def nnx_merge(params: dict):
    from flax import nnx

    return nnx.merge(declare(CONFIG, COMPUTE, BOTH)[0], jax.tree.map(jax.numpy.asarray, params))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Path:
    """A SentencePiece model, trained as the README of google-research/albert says."""
    import sentencepiece

    prefix = tmp_path_factory.mktemp("albert") / "30k-clean"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line.lower() for line in docs_lines()), model_prefix=str(prefix),
        vocab_size=1000, model_type="unigram", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"], minloglevel=2,
    )  # fmt: skip
    return prefix.with_suffix(".model")


def preprocessed(text: str) -> str:
    """preprocess_text in tokenization.py of google-research/albert."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


def test_its_vocabulary_gives_the_ids_of_its_program(vocabulary):
    import sentencepiece

    original = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    ours = Tokenizer(convert_albert(vocabulary.read_bytes(), "30k-clean.model"))
    assert ours.special == (0, 1, 2, 3, 4)
    lines = [
        *docs_lines()[:1500],
        "``Quoted'' NAÏVE  café (£5) – Über 3.14, x''y",
        "  ",
        "İstanbul ǅ",
    ]
    others = 0
    for line, found in zip(lines, ours.encode_batch(lines), strict=True):
        ids, wanted = found.tolist(), original.encode(preprocessed(line))
        if ids != wanted:  # of segmentations with one score, either may be the first
            others += 1
            assert original.decode(ids) == original.decode(wanted)
            scores = [sum(map(original.get_score, each)) for each in (ids, wanted)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4), line
    assert others < len(lines) // 100


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_a_tokenizer_of_transformers_gives_its_ids(vocabulary, tmp_path, capsys):
    from transformers import AutoTokenizer

    (tmp_path / "spiece.model").write_bytes(vocabulary.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    with pytest.raises(UserError, match=r"neither tokenizer\.json nor"):
        read_tokenizer(tmp_path, None)
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    ours = read_tokenizer(tmp_path / "saved", None)
    assert [*map(ours.token, ours.special)] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    for line in [*docs_lines()[:500], "A [MASK] of a[MASK], and", "``Naïve'' ÜBER"]:
        ids = [ours.special.cls, *ours.encode_texts([line])[0].tolist(), ours.special.sep]
        assert ids == theirs(line)["input_ids"], line
    assert "unknown keys" not in capsys.readouterr().err


@pytest.fixture
def google(vocabulary, tmp_path) -> Path:
    """A folder as run_pretraining.py of google-research/albert writes it."""
    folder = tmp_path / "google"
    folder.mkdir()
    config = dataclasses.replace(CONFIG, vocab_size=1000)
    write_bundle(
        folder / "model.ckpt-best",
        albert_tensors(weights.to_transformers(random_params(config, BOTH), config)),
    )
    kept = ("_prob", "_size", "_layers", "_heads", "_groups", "position_embeddings", "_range")
    values = {key: value for key, value in VALUES.items() if key.endswith(kept)}
    values |= {"vocab_size": 1000, "hidden_act": "gelu", "inner_group_num": 1, "gap_size": 0}
    (folder / "albert_config.json").write_text(json.dumps(values))
    (folder / "30k-clean.model").write_bytes(vocabulary.read_bytes())
    (folder / "30k-clean.vocab").write_text("<pad>\t0\n")
    return folder


def imported(folder: Path, *flags: str) -> int:
    out = folder.parent / "out"
    return cli.main(["convert", "import", f"--from={folder}", f"--out={out}", *flags])


def test_a_folder_of_google_is_imported_with_the_activation_that_it_means(google, tmp_path):
    assert imported(google) == DONE
    values = json.loads((tmp_path / "out/config.json").read_text())
    assert values["hidden_act"] == "gelu_pytorch_tanh"
    assert values["architectures"] == ["AlbertForPreTraining"]
    config = dataclasses.replace(CONFIG, vocab_size=1000)
    wanted = weights.to_transformers(random_params(config, BOTH), config)
    found = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    wanted |= weights.copies(wanted, config)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)
    model = bert_jax.load(tmp_path / "out")
    assert model.config == config
    assert len(model.fill_mask("The [MASK] of a run", top_k=3)[0]) == 3
    assert cli.main(["convert", "verify", str(google), str(tmp_path / "out")]) == DONE


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_transformers_reads_its_import_without_a_warning(google, tmp_path):
    from transformers import AutoTokenizer
    from transformers_log import load_quietly

    assert imported(google) == DONE
    model = load_quietly(tmp_path / "out", "AutoModelForPreTraining")
    assert type(model).__name__ == "AlbertForPreTraining"
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = bert_jax.load(tmp_path / "out").tokenizer
    for line in docs_lines()[:200]:
        ids = theirs(line, add_special_tokens=False)["input_ids"]
        assert "[MASK]" in line or ours.encode_batch([line])[0].tolist() == ids, line


def settings(**changes: object):
    def damage(folder: Path) -> None:
        file = folder / "albert_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


@pytest.mark.parametrize(
    ("damage", "flags", "says"),
    [
        (settings(hidden_act="relu"), (), "albert_config.json: hidden_act='relu' is not supported"),
        (settings(inner_group_num=2), (), "albert_config.json: inner_group_num=2 is not supported"),
        (settings(num_hidden_groups=3), (), "num_hidden_layers=4 is not a multiple of"),
        (lambda f: (f / "30k-clean.model").unlink(), (), "needs one SentencePiece vocabulary (*"),
        (lambda f: (f / "30k-clean.model").write_bytes(b"no"), (), "30k-clean.model: "),
        (lambda f: (f / "model.ckpt-best.index").unlink(), (), "needs one TensorFlow checkpoint"),
        (lambda f: None, ("--optimizer_state",), "the moments of google-research/albert are LAMB"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_read_is_one_line(damage, flags, says, google, tmp_path, capsys):
    damage(google)
    assert imported(google, *flags) == FAILED
    line = capsys.readouterr().err
    assert says in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()
