"""The page of `bert-jax status --html`."""

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from etils import epath

from bert_jax.config.recorded import settings_of
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.analysis.hidden_words import as_text, hide_words
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.errors import UserError, count
from bert_jax.metrics.fill_records import read_fills
from bert_jax.reporting import html, run_page, status_text
from bert_jax.reporting.fills import sample_sentences, to_type
from bert_jax.reporting.run_facts import hosts, model_facts, now, run_facts
from bert_jax.reporting.status import Status
from bert_jax.runtime.console import clock
from bert_jax.runtime.program import program
from bert_jax.storage.reader_errors import VALUE_ERRORS, one_line
from bert_jax.storage.remote import is_remote
from bert_jax.workdir.find_store import find_store
from bert_jax.workdir.inputs import inputs_of_model
from bert_jax.workdir.layout import Workdir

_HIDDEN: Final = "Hidden words: the first guess while the model learned"
_HIDDEN_WHERE: Final = "Words hidden in sentences held out from training, the same at every step."


def write_page(
    runs: Sequence[Status],
    path: epath.PathLike,
    *,
    unread: Mapping[str, UserError] | None = None,
    refresh: int = 0,
) -> None:
    """Writes an HTML page of runs: of one its state, curves, trivial baselines, hidden words and
    goodput, of several a table and their curves over each other; StorageError if the file cannot be
    written.

    Text and the bigram baseline of one run come from its token store; they are omitted if it can no
    longer be read.

    Args:
        unread: folder -> why it could not be read, of further runs.
        refresh: seconds after which a browser reads it again; 0: never.
    """
    unread = unread or {}
    alone = len(runs) == 1 and not unread
    page = _of_one(runs[0], refresh) if alone else _of_several(runs, unread, refresh)
    folders = [*(run.workdir for run in runs), *unread]
    page.save(path, inputs=[file for folder in folders for file in inputs_of_model(folder)])


def _of_several(runs: Sequence[Status], unread: Mapping[str, UserError], refresh: int) -> html.Page:
    """Returns the page of runs: a table of them, and what they logged over each other."""
    names = status_text.names(runs)
    everyone = [*names, *unread]
    page = html.Page(f"{count(len(everyone), 'run')}: {', '.join(everyone)}", refresh=refresh)
    for error in unread.values():
        page.text(f"Cannot be read any more: {error}.")
    if not runs:
        return page
    page.table(*status_text.runs_table(runs))
    if spent := status_text.cost(*runs):
        page.text(f"Cost so far of all together: {spent}. Written {now()}.")
    logged = {name: run_page.Logged.of(run.logged) for name, run in zip(names, runs, strict=True)}
    if len(runs) == 1:  # the others cannot be read
        page.heading(f"Curves of {names[0]}")
    else:
        page.heading("Curves")
        page.text("Thick: held-out text; thin, in the same colour: training.")
    with _damage(page):
        run_page.add_curves(page, logged)
    for name, own in logged.items():
        if own.filled:
            page.heading(f"Hidden words, first guesses of {name}")
            page.text(_HIDDEN_WHERE)
            run_page.add_fills(page, own.filled)
    return page


@contextlib.contextmanager
def _damage(page: html.Page) -> Iterator[None]:
    """Says on the page that a record is damaged, in place of what is made of it."""
    try:
        yield
    except VALUE_ERRORS as error:
        page.text(
            f"A record in metrics.jsonl is damaged: {one_line(error)} is missing or no number."
        )


def _of_one(status: Status, refresh: int) -> html.Page:
    """Returns the page of a run."""
    from bert_jax.data_pipeline.analysis.baselines import bigram_loss

    workdir, run, logged = Workdir.open(status.workdir), status.run, status.logged
    config = settings_of(run)
    path_of_store, store = _store(workdir, run, config)
    title = f"{'Fine-tuning' if status.task else 'Pretraining'} in {workdir}"
    page = html.Page(title, refresh=refresh)
    page.facts(
        {
            "state": f"step {status.step:,} of {status.total_steps:,}; {status_text.state(status)}",
            "time since the start": clock(status.goodput.wall),
            "model": model_facts(config),
            **run_facts(run, status.step, logged),
            **({"cost so far": spent} if (spent := status_text.cost(status)) else {}),
            **hosts(logged),
            **(_task(config) if status.task else _text(path_of_store, store)),
            "config": str(workdir.config_json),
        }
    )
    page.commands(_next_steps(status, workdir, _sentence(store, config)))
    if store:
        page.heading("The text")
        page.sentences(sample_sentences(store))
    baselines = {"left neighbour (bigram)": bigram_loss(store)} if store else {}
    with _damage(page):
        run_page.add_training(page, run_page.Logged.of(logged), token_baselines=baselines)
    if filled := read_fills(logged):
        page.heading(_HIDDEN)
        page.text(_HIDDEN_WHERE)
        run_page.add_fills(page, filled)
    run_page.add_goodput(page, status.goodput)
    return page


def _store(
    workdir: Workdir, run: Mapping[str, Any], config: Config
) -> tuple[str, TokenStore | None]:
    """Returns the path of a run's token store, and the store if it can be read; "" for a task."""
    if config.task.name:
        return "", None
    path = find_store(workdir, config.data.store, run["data"])
    try:
        return path, open_store(path, verify=False)
    except UserError:
        return path, None


def _text(path: str, store: TokenStore | None) -> dict[str, str]:
    size = f", {len(store.train.tokens):,} training tokens" if store else ""
    return {"text": f"{path}{size}"}


def _task(config: Config) -> dict[str, str]:
    return {"task": f"{config.task.name}, {config.task.data}"}


def _sentence(store: TokenStore | None, config: Config) -> str:
    """Returns a short held-out sentence with a mask."""
    longest = config.phases[0].seq_length - 2  # [CLS] and [SEP]
    drawn = hide_words(store, seed=config.seed, count=10, longest=longest) if store else []
    return to_type(as_text(each.sentence) for each in drawn)


def _next_steps(status: Status, workdir: Workdir, sentence: str) -> Iterator[tuple[str, str]]:
    if status.restart_from is not None:
        yield from _of_task(workdir) if status.task else _of_encoder(workdir, sentence)
    if not status.finished:
        yield "Show the current state:", f"{program()} status --workdir={_quoted(workdir)}"


def _of_encoder(workdir: Workdir, sentence: str) -> Iterator[tuple[str, str]]:
    run, export, text = _quoted(workdir), _quoted(workdir, "_export"), shlex.quote(sentence)
    yield (
        "Fill the mask in a held-out sentence with the newest checkpoint:",
        f"{program()} convert export --workdir={run} --out={export}\n"
        f"{program()} fill --model={export} {text}",
    )
    yield (
        "Measure the checkpoints on all held-out text:",
        f"{program()} evaluate --workdir={run} --all",
    )


def _of_task(workdir: Workdir) -> Iterator[tuple[str, str]]:
    run, out = _quoted(workdir), _quoted(workdir, "_predictions")
    yield (
        "Predict for a file in the form of the task's:",
        f"{program()} predict --model={run} --input=FILE --out={out}",
    )
    yield (
        "Export the model for transformers:",
        f"{program()} convert export --workdir={run} --out={_quoted(workdir, '_export')}",
    )


def _quoted(workdir: Workdir, end: str = "") -> str:
    """Returns a workdir for a shell; with an end, a path beside it, which is local."""
    name = workdir.path.name if end and is_remote(workdir.path) else workdir
    return shlex.quote(f"{name}{end}")
