"""The page of `bert-jax status --html`."""

import shlex
from collections.abc import Iterator

from etils import epath

from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.errors import UserError
from bert_jax.metrics import records
from bert_jax.reporting import html, run_page, status_text
from bert_jax.reporting.fills import sample_sentences
from bert_jax.reporting.run_facts import model_facts, run_facts
from bert_jax.reporting.status import Status, read
from bert_jax.runtime.console import clock
from bert_jax.runtime.program import program
from bert_jax.workdir import description
from bert_jax.workdir.find_store import find_store
from bert_jax.workdir.layout import Workdir


def write_page(folder: epath.PathLike, path: epath.PathLike) -> None:
    """Writes an HTML page with the run's state, its curves, their trivial baselines and its
    goodput; UserError if the folder holds no run, StorageError if the file cannot be written.

    Text and the bigram baseline come from the run's token store; they are omitted if it can no
    longer be read.
    """
    from bert_jax.data_pipeline.analysis.baselines import bigram_loss

    workdir, status = Workdir.open(folder), read(folder)
    run = description.read(workdir)
    config = from_dict(run["config"], Config)
    path_of_store = find_store(workdir, config.data.store, run["data"])
    store = _store(path_of_store)
    page = html.Page(f"Pretraining in {workdir}")
    page.facts(
        {
            "state": f"step {status.step:,} of {status.total_steps:,}; {status_text.state(status)}",
            "time since the start": clock(status.goodput.wall),
            "model": model_facts(config),
            **run_facts(run, status.step, records.records(workdir.metrics)),
            **_hosts(workdir),
            "text": path_of_store
            + (f", {len(store.train.tokens):,} training tokens" if store else ""),
            "config": str(workdir.config_json),
        }
    )
    page.commands(_next_steps(status))
    if store:
        page.heading("The text")
        page.sentences(sample_sentences(store))
    baselines = {"left neighbour (bigram)": bigram_loss(store)} if store else {}
    run_page.add_training(page, workdir.metrics, token_baselines=baselines)
    run_page.add_goodput(page, status.goodput)
    page.save(path)


def _hosts(workdir: Workdir) -> dict[str, str]:
    """The machines of the last start, if one was recorded."""
    starts = [r for r in records.records(workdir.metrics) if r["kind"] == "start" and "hosts" in r]
    return {"hosts": ", ".join(dict.fromkeys(starts[-1]["hosts"]))} if starts else {}


def _store(path: str) -> TokenStore | None:
    try:
        return open_store(path, verify=False)
    except UserError:
        return None


def _next_steps(status: Status) -> Iterator[tuple[str, str]]:
    workdir, export = (shlex.quote(name) for name in (status.workdir, f"{status.workdir}_export"))
    yield "Show the current state:", f"{program()} status --workdir={workdir}"
    if status.restart_from is not None:
        yield (
            "Measure the checkpoints on all held-out text:",
            f"{program()} evaluate --workdir={workdir} --all",
        )
        yield (
            "Export the newest checkpoint for transformers, and fill masks with it:",
            f"{program()} convert export --workdir={workdir} --out={export}\n"
            f'{program()} fill --model={export} "the [MASK] of the day"',
        )
