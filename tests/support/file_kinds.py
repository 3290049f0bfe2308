"""Every kind of file that bert-jax reads: a small whole one, and what a reader makes of it."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import corpus
import numpy as np
import prepared_dataset
import row_files
import small_dump
import tensorflow_bundle
from etils import epath
from exported import TEXTS, random_params
from small import model_config

from bert_jax.ablation import record
from bert_jax.ablation.layout import AblationDir
from bert_jax.api import embed
from bert_jax.config import values_file
from bert_jax.convert import weights
from bert_jax.convert.model_folders import local_folder
from bert_jax.convert.reader import StoredModel
from bert_jax.convert.sources import read_stored
from bert_jax.convert.stored_tokenizer import read_tokenizer
from bert_jax.data_pipeline import sources
from bert_jax.data_pipeline.export import example_files as exported_examples
from bert_jax.data_pipeline.plan import column_files as plan_files
from bert_jax.data_pipeline.store.manifest import ARRAYS
from bert_jax.data_pipeline.store.store import open_store
from bert_jax.data_pipeline.store_build.digests import FileDigests
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.finetune import predict_file, results
from bert_jax.finetune.tasks import conll, squad, table
from bert_jax.launch.slurm.requeue import State
from bert_jax.metrics import run_records
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.reporting import status, status_page, status_text
from bert_jax.storage.digested_files import DigestedFiles
from bert_jax.training import optimizer_state, per_example
from bert_jax.training.per_example import PerExample
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir

ROWS = [{"text": f"Row {n} of some text.\nIts end.", "title": f"T{n}"} for n in range(9)]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        write: writes whole files below a folder.
        read: returns what a reader makes of the folder, as text, or raises a UserError.
        has_digest: whether other content than that which was written is always noticed.
    """

    write: Callable[[Path], object]
    read: Callable[[Path], str]
    has_digest: bool = False


def _source(kind: str, name: str = "", options: str = "") -> Callable[[Path], str]:
    def read(folder: Path) -> str:
        spec = sources.parse_source(f"{kind}:{folder / name}{options}")
        found = [
            (document.text, document.title)
            for path in sources.find(spec).files
            for part in sources.ranges(spec, path)
            for document in sources.read_range(spec, part)
        ]
        return repr(found)

    return read


def _arrow_file(folder: Path) -> None:
    import pyarrow as pa

    row_files.write_arrow(folder / "a.arrow", ROWS, new=pa.ipc.new_file)


def _compressed(ending: str) -> Kind:
    def write(folder: Path) -> None:
        row_files.write_jsonl(folder / f"a.jsonl{ending}", ROWS)

    # Of zstd only if its writer asks for it; of gzip and bzip2 a CRC-32, of xz a CRC-64.
    return Kind(write, _source("jsonl"))


def _dump(folder: Path) -> None:
    text = small_dump.HEAD + "".join(small_dump.articles(6)) + small_dump.END
    (folder / "a.xml").write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{text}')
    (folder / "b.xml.bz2").write_bytes(small_dump.multistream(small_dump.articles(6)))


def _tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS[:7], 300, lowercase=True)


def _model(folder: Path, *, foreign: bool = False) -> None:
    tokenizer = _tokenizer()
    config = dataclasses.replace(
        model_config(), vocab_size=tokenizer.vocab_size, pad_vocab_to_multiple_of=1
    )
    export(random_params(config), config, tokenizer, folder / "model", card=Card())
    if foreign:
        (folder / "model" / "SHA256SUMS").unlink()


def _pytorch(folder: Path) -> None:
    import safetensors.numpy
    from pytorch_files import write_pytorch

    _model(folder, foreign=True)
    weights = safetensors.numpy.load_file(folder / "model" / "model.safetensors")
    write_pytorch(folder / "model", weights, legacy=False, shards=1)


def _google(folder: Path) -> None:
    tokenizer = _tokenizer()
    config = dataclasses.replace(
        model_config(), vocab_size=tokenizer.vocab_size, pad_vocab_to_multiple_of=1
    )
    entries = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    state = weights.to_transformers(random_params(config), config)
    tensorflow_bundle.write_google_folder(folder / "model", config, state, entries)


def _read_model(folder: Path) -> str:
    with local_folder(str(folder / "model")) as found:
        return _described(read_stored(found))


def _described(model: StoredModel) -> str:
    tensors = {name: np.asarray(x).tobytes().hex() for name, x in model.tensors.items()}
    return repr((model.config, tensors, model.tokenizer.json))


def _vocab(folder: Path) -> None:
    entries = [*corpus.SPECIAL, *(f"w{n}" for n in range(90))]
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')


def _sentencepiece(folder: Path) -> None:
    from bert_jax.data_pipeline.tokenizer.sentencepiece_model import train_model

    (folder / "a.model").write_bytes(train_model(TEXTS[:7], 91, "unigram", lowercase=False))


def _byte_level(folder: Path) -> None:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefgh", "ab", "abc", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\nab c\n")


def _run(folder: Path) -> None:
    store = corpus.small_store(folder.parent / f"{folder.name}-store")
    config = corpus.small_config(store)
    made = description.describe(config, store, [8], mesh={"data": 1}, device_kind="cpu")
    (folder / "config.json").write_text(json.dumps(made))
    lines = [
        run_records.line(
            "train", step, 0, {"loss": 5.0, "step_seconds": 1.0, "tokens_per_second": 9.0}
        )
        for step in (4, 8)
    ]
    (folder / "metrics.jsonl").write_text("".join(lines))


def _read_run(folder: Path) -> str:
    found = repr(description.read_description(Workdir.open(folder)))
    status_text.render(status.read_status(folder))
    return found


def _write_page(folder: Path) -> str:
    page = folder.with_name(f"{folder.name}.html")  # a run takes no file of others
    status_page.write_page([status.read_status(folder)], page)
    page.unlink()
    return ""


def _examples(folder: Path) -> None:
    some = PerExample(
        np.arange(50), np.zeros(50, np.uint16),
        {"mlm": {"loss": np.ones(50, np.float32), "count": np.ones(50, np.float32)}},
    )  # fmt: skip
    about = {
        "run_id": "a", "step": 60, "held_out": "b", "sources": [], "seconds": 1.0,
        "forms": {"own": {"settings": {}, "metrics": {}}},
    }  # fmt: skip
    per_example.write(folder / "a.npz", {"own": some}, about)


def _read_examples(folder: Path) -> str:
    by_form, about = per_example.read_losses(folder / "a.npz")
    arrays = [own.arrays(form) for form, own in by_form.items()]
    return repr(([{name: x.tolist() for name, x in each.items()} for each in arrays], about))


def _ablation(folder: Path) -> None:
    values = {
        "config": {
            "base": "demo", "store": "a", "changes": [["seed", 1]], "seeds": "0,1",
            "variants": [["on", [["data.pairing", "nsp"]]], ["off", []]], "tasks": [],
        },
        "base": {"seed": 0, "phases": [{"steps": 3}]},
        "store": {"train": "a", "held_out": "b", "tokenizer": "c", "sources": ["wiki", "books"]},
        "task_files": {"sst2": {"train": "d", "held_out": "e"}},
        "seeds": [{"seeds": "0,1", "time": "2026-11-26T04:40:00+00:00"}],
        "first_report": {"seeds": "0,1", "time": "2026-11-26T05:40:00+00:00"},
        "reports": [{"seeds": "0", "time": "2026-11-26T05:40:00+00:00"}],
    }  # fmt: skip
    (folder / "ablation.json").write_text(json.dumps(values))


def _task_files(folder: Path) -> None:
    row_files.write_csv(folder / "a.csv", ROWS)
    row_files.write_jsonl(folder / "a.jsonl", ROWS)
    (folder / "a.conll").write_text("EU B-ORG\nrejects O\n\nPeter B-PER\nBlackburn I-PER\n")
    question = {"id": "1", "question": "Who?", "answers": [{"text": "Paul", "answer_start": 0}]}
    paragraphs = [{"context": "Paul ran.", "qas": [question]}]
    (folder / "a.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


def _read_task_files(folder: Path) -> str:
    columns = table.Columns("text", label="title")
    return repr(
        [
            *(table.read_table(folder / name, columns) for name in ("a.csv", "a.jsonl")),
            conll.read_sentences(folder / "a.conll"),
            squad.read_questions(folder / "a.json"),
        ]
    )


def _configs(folder: Path) -> None:
    (folder / "a.yaml").write_text("seed: 3\noptimizer: {learning_rate: 1e-4}\n")
    (folder / "a.json").write_text('{"seed": 3, "optimizer": {"learning_rate": 1e-4}}')


def _read_configs(folder: Path) -> str:
    return repr([values_file.get_config(str(folder / name)) for name in ("a.yaml", "a.json")])


def _small_records(folder: Path) -> None:
    """Records of one object each."""
    runs = {"task": "a", "metrics": ["f1"], "runs": [{"run": "seed-0", "f1": 0.5}]}
    (folder / results.FILE).write_text(json.dumps(runs))
    State("1", 2, 3).write(folder)
    (folder / exported_examples.ABOUT).write_text('{"a": 1, "b": "x"}')
    (folder / "digests.json").write_text(json.dumps({"/a": [1, 2, "abc"]}))
    (folder / "settings.json").write_text('{"lines": "a", "weights": "b", "tokenizer": "c"}')


def _read_small_records(folder: Path) -> str:
    FileDigests(folder)
    marks = (embed.PARTS, exported_examples.EXAMPLES, results.SEEDS)
    ours = [kind.is_ours and kind.is_ours(epath.Path(folder)) for kind in marks]
    return repr((predict_file.find_model(str(folder)), State.read(folder), ours))


def _plan(folder: Path) -> None:
    columns = {"a": np.dtype(np.int32), "b": np.dtype(np.uint8)}
    plan_files.keep(
        folder / "plan",
        columns,
        lambda put: [put(name, np.arange(40, dtype=kind)) for name, kind in columns.items()],
    )


def _read_plan(folder: Path) -> str:
    columns = {"a": np.dtype(np.int32), "b": np.dtype(np.uint8)}
    found = plan_files.find(folder / "plan", columns)
    return "" if found is None else repr({name: x.tolist() for name, x in found.items()})


def _programs(folder: Path) -> None:
    for key in "ab":
        DigestedFiles(folder, print).put(key, key.encode() * 50)


def _read_programs(folder: Path) -> str:
    found = [DigestedFiles(folder, print).get(key) for key in "ab"]
    return "" if None in found else repr(found)


def _store(folder: Path) -> None:
    corpus.small_store(folder / "store")


def _read_store(folder: Path) -> str:
    store = open_store(folder / "store")
    splits = (store.train, store.held_out)
    arrays = [getattr(split, name).tolist() for split in splits for name in ARRAYS]
    return repr((store.manifest, store.tokenizer_path.read_bytes(), arrays))


def _optimizer(folder: Path) -> None:
    from bert_jax.publish.weight_writer import write_optimizer

    moments = {"a": np.ones(4, np.float32)}
    write_optimizer(folder, optimizer_state.of_moments(moments, moments, 3))


def _read_optimizer(folder: Path) -> str:
    state = optimizer_state.read_state(folder)
    return repr((state.optimizer, {name: x.tolist() for name, x in state.leaves.items()}))


KINDS: Mapping[str, Kind] = {
    "arrow stream": Kind(lambda f: row_files.write_arrow(f / "a.arrow", ROWS), _source("arrow")),
    "arrow file": Kind(_arrow_file, _source("arrow")),
    "saved dataset": Kind(
        lambda f: row_files.write_saved(f / "data", ROWS), _source("arrow", "data")
    ),
    "parquet": Kind(lambda f: row_files.write_parquet(f / "a.parquet", ROWS), _source("parquet")),
    "jsonl": Kind(lambda f: row_files.write_jsonl(f / "a.jsonl", ROWS), _source("jsonl")),
    "csv": Kind(lambda f: row_files.write_csv(f / "a.csv", ROWS), _source("csv")),
    **{ending: _compressed(ending) for ending in row_files.COMPRESS},
    "dump": Kind(_dump, _source("dump")),
    "prepared dataset": Kind(
        lambda f: prepared_dataset.write(f / "wiki" / "1.0.0", {"train": [ROWS[:4], ROWS[4:]]}),
        _source("tfds", "wiki"),
    ),
    "token store": Kind(_store, _read_store, has_digest=True),
    "plan": Kind(_plan, _read_plan, has_digest=True),
    "programs": Kind(_programs, _read_programs, has_digest=True),
    "export": Kind(_model, _read_model, has_digest=True),
    "safetensors": Kind(lambda f: _model(f, foreign=True), _read_model),
    "pytorch": Kind(_pytorch, _read_model),
    "tensorflow": Kind(_google, _read_model),
    "optimizer": Kind(_optimizer, _read_optimizer),
    "vocab.txt": Kind(_vocab, lambda f: repr(read_tokenizer(f, None).json)),
    "sentencepiece": Kind(_sentencepiece, lambda f: repr(Tokenizer.load(f / "a.model").json)),
    "tokenizer.json": Kind(
        lambda f: _tokenizer().save(f / "tokenizer.json"),
        lambda f: repr(Tokenizer.load(f / "tokenizer.json").json),
    ),
    "vocab.json": Kind(_byte_level, lambda f: repr(read_tokenizer(f, None).json)),
    "run": Kind(_run, _read_run),
    "page of a run": Kind(_run, _write_page),
    "examples": Kind(_examples, _read_examples),
    "ablation": Kind(_ablation, lambda f: repr(record.read_record(AblationDir.open(f)))),
    "task files": Kind(_task_files, _read_task_files),
    "configs": Kind(_configs, _read_configs),
    "small records": Kind(_small_records, _read_small_records),
}
