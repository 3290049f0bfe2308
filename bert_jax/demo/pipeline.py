"""The entire pipeline on one machine; an interrupted demo resumes where it stopped."""

import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bert_jax.checkpoint.catalog import complete_steps
from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.sources import (
    KINDS,
    SourceSpec,
    find,
    guess_kind,
    parse_source,
    written,
)
from bert_jax.data_pipeline.sources.finding import above_wildcards, named
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build.build import build_store, use_recorded
from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.demo.report import Fills, fill_masks, write_report
from bert_jax.distributed import cluster, job
from bert_jax.errors import UserError, count
from bert_jax.publish.export import run_export
from bert_jax.reporting.fills import to_type
from bert_jax.runtime import compile_cache, cpu
from bert_jax.runtime.console import console
from bert_jax.runtime.program import program
from bert_jax.storage import json_record
from bert_jax.storage.digest import json_digest
from bert_jax.storage.outputs import OutputKind, check_output
from bert_jax.storage.remote import absolute, put, storage_errors
from bert_jax.training.loop import pretrain
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir

T = TypeVar("T")

_VOCABULARY = 8192  # entries; little text has fewer
_PACKAGES = "numpy+scipy"  # whose documentation is read besides that of Python
_HELD_OUT_SHARE = 0.03  # of the documentation
_CLAIM = "demo.json"  # the text and the settings of the demo in a workdir
DEMO = OutputKind(
    "demo", lambda folder: (folder / _CLAIM).exists(), is_folder=True, in_buckets=False
)


def demo(workdir: Path | None = None, *, data: str | None = None, steps: int | None = None) -> None:
    """Text → vocabulary → token store → pretraining → export → filled masks → report.html.

    A stage whose result exists in the workdir is not repeated. JAX trains on a GPU or TPU if it
    finds one, else on the CPU.

    Args:
        workdir: by default that of the text, `default_workdir`.
        data: a file or folder of text, or KIND:PATH as for `data build`; by default the
            documentation in Python, NumPy and SciPy.
        steps: number of training steps, if not the config's.

    Raises:
        UserError: the text cannot be used, or the workdir was created from other text.
        StoppedError: interrupted while training; the state is saved.
    """
    cpu.use_cpu_devices(1, beside_accelerators=True)
    compile_cache.use()
    config, source = load("demo"), source_of(data)
    workdir = workdir or default_workdir(source)
    use_recorded([source.path], workdir / "store")
    _claim(workdir, source, config)
    _check_steps(workdir, source, steps or config.phases[0].steps)
    share = _HELD_OUT_SHARE if data is None else None  # the default holds out more of little text
    tokenizer = _stage("vocabulary", lambda: _tokenizer(workdir, source))
    store = _stage(
        "token store",
        lambda: build_store([source], tokenizer, workdir / "store", held_out_share=share),
    )
    _check_documents(store, source)
    config = _adapt(config, store, steps)
    _stage("pretraining", lambda: _pretrain(config, workdir / "run"))
    _stage("export", lambda: run_export(workdir / "run", workdir / "export"))
    fills = _stage("filled masks", lambda: fill_masks(workdir, store, config))
    steps_to_try = _next_steps(workdir, store, fills)
    text = _read_claim(workdir / _CLAIM)["text"]
    write_report(workdir, text, store, fills, steps_to_try)
    console.print(f"\nreport: {workdir / 'report.html'}   model: {workdir / 'export'}\n\nNext:")
    for purpose, command in steps_to_try:
        console.print(f"\n  {purpose}\n  {command}")


def default_workdir(source: SourceSpec) -> Path:
    """Returns the folder of a text's demo: demo_run, or demo_run_NAME for a user's file or folder
    of that name, with wildcards the folder above them."""
    if source.kind == "python":
        return Path("demo_run")
    text = above_wildcards(source.path).resolve()
    return Path(f"demo_run_{text.name if text.is_dir() else text.stem}")


def source_of(data: str | None) -> SourceSpec:
    """The user's text, its kind given or guessed from its files, or Python's own documentation."""
    if data is None:
        return parse_source(f"python,packages={_PACKAGES}")
    kind, colon, _ = data.partition(":")
    given = kind in KINDS or (colon and kind.isidentifier() and not Path(data).exists())
    return parse_source(f"{data if given else f'{guess_kind(Path(data))}:{data}'},name=text")


def _claim(workdir: Path, source: SourceSpec, config: Config) -> None:
    """Marks a new folder as the demo of this text; UserError if it holds another one."""
    files = [[str(path), path.stat().st_size] for path in find(source).files]
    claim = {
        "text": _text_of(source),
        "files": json_digest(files),
        "settings": description.digest(config),
    }
    is_new = not workdir.exists() or not any(workdir.iterdir())
    previous = _read_claim(workdir / _CLAIM)
    reasons = {
        "settings": "holds a demo with other settings, of another version of bert-jax",
        "text": f"holds the demo of other text, {previous.get('text')}",
        "files": f"holds the demo of {claim['text']}, which has changed since",
    }
    changed = [reason for key, reason in reasons.items() if previous.get(key) != claim[key]]
    if changed and not is_new:
        reason = changed[0] if previous else "holds files, but no demo of this version of bert-jax"
        raise UserError(f"{workdir}: {reason}; move it away, or {_elsewhere(workdir, source)}")
    check_output(workdir, DEMO, inputs=named(source.path))
    if is_new:
        workdir.mkdir(parents=True, exist_ok=True)
        put(workdir / _CLAIM, json.dumps(claim, indent=2).encode())


def _text_of(source: SourceSpec) -> str:
    """Returns the source with its options, as --data takes it."""
    path = source.path if source.kind == "hf" else absolute(source.path)
    return f"python:{path}" if source.kind == "python" else written(source, path)


def _elsewhere(workdir: Path, source: SourceSpec, steps: int | None = None) -> str:
    """Returns the advice to give another folder, with the command."""
    data = "" if source.kind == "python" else f" --data={shlex.quote(_text_of(source))}"
    given = f" --steps={steps}" if steps else ""
    another = shlex.quote(f"{workdir}_2")
    return f"give another folder: {program()} demo{data}{given} --workdir={another}"


def _check_steps(workdir: Path, source: SourceSpec, steps: int) -> None:
    """Raises UserError if a model is trained for other steps, or for more than these."""
    run = Workdir.open(workdir / "run")
    if not run.is_run() or not (done := max(complete_steps(run.checkpoints), default=0)):
        return
    planned = description.read_description(run)["config"]["phases"][0]["steps"]
    if steps < done or (steps > planned and done >= planned):
        raise UserError(
            f"{workdir}: its model is trained for {done} of {planned} steps, and cannot be for "
            f"{steps}; give --steps={planned}, or {_elsewhere(workdir, source, steps)}"
        )


def _check_documents(store: TokenStore, source: SourceSpec) -> None:
    """Raises UserError for a store of which a split has no two documents, for pairs of them."""
    train, held_out = (len(split.document_lengths) for split in (store.train, store.held_out))
    if min(train, held_out) < 2:
        raise UserError(
            f"{source.path}: {count(train + held_out, 'document')} with text, but the demo needs "
            "four or more; give more files, or text with more documents or chapters"
        )


def _read_claim(path: Path) -> Mapping[str, Any]:
    """Returns the stored claim; an empty one if it is missing or damaged."""
    try:
        with storage_errors(path):
            return json_record.read_if_there(path, dict) or {}
    except ValueError:
        return {}


def _stage(name: str, run: Callable[[], T]) -> T:
    console.rule(name, align="left")
    start = time.perf_counter()
    result = run()
    console.print(f"{name}: {time.perf_counter() - start:.0f} s")
    return result


def _tokenizer(workdir: Path, source: SourceSpec) -> Tokenizer:
    path = workdir / "tokenizer.json"
    if not path.exists():
        train_tokenizer([source], _VOCABULARY, lowercase=True).save(path)
    return Tokenizer.load(path)


def _adapt(config: Config, store: TokenStore, steps: int | None) -> Config:
    """The demo's config, adapted to this store."""
    (phase,) = config.phases
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocab_size=store.vocab_size),
        data=dataclasses.replace(config.data, store=str(store.path)),
        phases=(dataclasses.replace(phase, steps=steps or phase.steps),),
    )


def _pretrain(config: Config, run: Path) -> None:
    with job.distributed_job(config, cluster.single_process(), {}) as started:
        pretrain(config, run, job=started)


def _next_steps(workdir: Path, store: TokenStore, fills: Fills) -> list[tuple[str, str]]:
    """Three commands to type after the demo, each with its purpose."""
    export, tokens, page, run = (
        shlex.quote(str(workdir / name)) for name in ("export", "store", "store.html", "larger")
    )
    sentences = (f"{fill.before}[MASK]{fill.after}" for fill in fills.shown)
    sentence = shlex.quote(to_type(sentences))
    steps = [
        ("Fill the masks of your own sentences:", f"fill --model={export} {sentence}"),
        (
            "See the examples that the model was trained on:",
            f"data inspect --store={tokens} --config=demo --html={page}",
        ),
        (
            "Pretrain a larger model on the same text (an hour or more without an accelerator):",
            f"pretrain --config=wiki_books_small --config.data.store={tokens} --workdir={run}",
        ),
    ]
    return [(purpose, f"{program()} {command}") for purpose, command in steps]
