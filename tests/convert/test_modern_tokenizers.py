"""Folders with tokenizers of the kinds that ModernBERT, mmBERT and ALBERT have."""

import json
from pathlib import Path

import numpy as np
import pytest
from docs_lines import docs_lines
from late_import import LateImport
from layout_models import layout_config
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import bert_jax
from bert_jax import cli
from bert_jax.convert.hf_config import to_config_json
from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE

torch = LateImport("torch")
transformers = LateImport("transformers")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
EXTRA_ROWS = 7  # of the vocabulary, without an entry


LINES = [
    *docs_lines()[:400],
    "Naïve café: 3.14 (ÜBER), isn't it?",
    "東京は日本の 🦜  two  spaces",
    " a\tb",
]


def template(cls: str, sep: str, encoder: Tokenizer) -> processors.TemplateProcessing:
    ids = [(token, encoder.token_to_id(token)) for token in (cls, sep)]
    pair = f"{cls} $A {sep} $B:1 {sep}:1"
    return processors.TemplateProcessing(single=f"{cls} $A {sep}", pair=pair, special_tokens=ids)


def modernbert() -> tuple[Tokenizer, dict[str, str]]:
    """A byte-level BPE whose special tokens follow its entries; the mask takes the space before."""
    encoder = Tokenizer(models.BPE())
    encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, show_progress=False,
        special_tokens=["|||IP_ADDRESS|||", "<|padding|>"],
    )  # fmt: skip
    encoder.train_from_iterator(docs_lines(), trainer)
    encoder.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    encoder.add_special_tokens(["<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]"])
    encoder.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    encoder.add_tokens([f"[unused{n}]" for n in range(5)])
    encoder.post_processor = template("[CLS]", "[SEP]", encoder)
    names = ("unk", "cls", "sep", "pad", "mask")
    return encoder, {f"{name}_token": f"[{name.upper()}]" for name in names}


def gemma() -> tuple[Tokenizer, dict[str, str]]:
    """A BPE with byte fallback, in which a space is a mark before a word, and <s> is a piece."""
    encoder = Tokenizer(models.BPE())
    encoder.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False)
    words = (f" {word}" for line in docs_lines()[:300] for word in line.split())
    encoder.train_from_iterator(words, trainer)
    trained = json.loads(encoder.to_str())["model"]
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<s>", "</s>", *BYTES]
    entries = [*first, *(entry for entry in trained["vocab"] if entry not in first)]
    model = models.BPE(
        {entry: i for i, entry in enumerate(entries)}, [*map(tuple, trained["merges"])],
        unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )  # fmt: skip
    encoder = Tokenizer(model)
    encoder.normalizer = normalizers.Replace(" ", "▁")
    encoder.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    encoder.decoder = decoders.Sequence(steps)
    encoder.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    encoder.post_processor = template("<bos>", "<eos>", encoder)
    special = {"bos": "<bos>", "eos": "<eos>", "cls": "<bos>", "sep": "<eos>"}
    special |= {name: f"<{name}>" for name in ("pad", "unk", "mask")}
    return encoder, {f"{name}_token": token for name, token in special.items()}


KINDS = {"modernbert": modernbert, "gemma": gemma}


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory) -> Path:
    """A ModernBERT with such a tokenizer, as transformers saves both."""
    folder = tmp_path_factory.mktemp(request.param) / "saved"
    encoder, special = KINDS[request.param]()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=encoder, model_input_names=["input_ids", "attention_mask"], **special
    )
    tokenizer.save_pretrained(folder)
    rows = len(tokenizer) + EXTRA_ROWS
    config = layout_config("modernbert", vocab_size=rows)
    values = to_config_json(config, pad_token_id=tokenizer.pad_token_id, heads={"mlm"})
    torch.manual_seed(0)
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**values))
    with torch.no_grad():
        model.decoder.bias[-EXTRA_ROWS:] = 100.0  # which would always be predicted
    model.save_pretrained(folder)
    return folder


def mask_of(folder: Path) -> str:
    return json.loads((folder / "tokenizer_config.json").read_text())["mask_token"]


def test_ids_are_those_of_transformers_before_and_after_an_import(saved, tmp_path):
    from transformers_log import load_quietly

    command = ["convert", "import", f"--from={saved}", f"--out={tmp_path / 'out'}"]
    assert cli.main(command) == DONE
    assert cli.main(["convert", "verify", str(saved), str(tmp_path / "out")]) == DONE
    load_quietly(tmp_path / "out", "AutoModelForMaskedLM")
    ours = read_tokenizer(saved, None)
    mask = mask_of(saved)
    for folder in (saved, tmp_path / "out"):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        special = ("pad", "unk", "cls", "sep", "mask")
        assert [*ours.special] == [getattr(theirs, f"{name}_token_id") for name in special]
        for line in [*LINES, f"The {mask} of a {mask}, and{mask}.", f"{mask}{mask} end"]:
            ids = theirs(line)["input_ids"]
            found = ours.encode_texts([line])[0].tolist()
            assert [ours.special.cls, *found, ours.special.sep] == ids, line
            # A special token in a text for pretraining is text.
            if not any(map(line.__contains__, theirs.all_special_tokens)):
                in_paragraph = theirs(f" {line}", add_special_tokens=False)["input_ids"]
                assert ours.encode_batch([line])[0].tolist() == in_paragraph, line
        assert "token_type_ids" not in theirs("a", "b")


def test_words_begin_where_a_space_is(saved):
    ours = read_tokenizer(saved, None)
    (ids,) = ours.encode_batch(["the store of a run"])
    starts = ours.word_starts[ids]
    assert starts.sum() == 5
    assert starts[0]


def test_rows_without_an_entry_are_kept_and_never_predicted(saved):
    model = bert_jax.load(saved)
    assert model.config.vocab_size == model.tokenizer.vocab_size + EXTRA_ROWS
    (fills,) = model.fill_mask(f"The {mask_of(saved)} of a run", top_k=3)
    assert len(fills) == 3
    assert all(np.isfinite(fill.probability) for fill in fills)


def test_tokens_around_a_text_that_are_its_own_are_read(saved, tmp_path):
    """As some classes write them; others are refused."""
    file = saved / "tokenizer_config.json"
    before = file.read_text()
    values = json.loads(before)
    usual = values.get("bos_token") == values["cls_token"]
    try:
        file.write_text(json.dumps(values | {"add_bos_token": True, "add_eos_token": True}))
        if usual:
            read_tokenizer(saved, None)
        else:
            with pytest.raises(UserError, match="add_bos_token=True is not supported"):
                read_tokenizer(saved, None)
    finally:
        file.write_text(before)
