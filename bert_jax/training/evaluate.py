"""Held-out evaluation: one pass over the held-out rows with one fixed masking.

The examples and masks depend only on the store, the sequence length, the pairing and the masking:
runs that differ in seed, batch size, packing, mixing or static masks are evaluated on the same
ones. A limit (`config.evaluation.batches`) takes the first limit * batch_size rows, so results are
comparable only between runs where that product is equal.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import jax
from etils import epath

from bert_jax.checkpoint.manager import find_steps, known_run, read_own_meta, read_params
from bert_jax.config.schema import Config, DataConfig, MeshConfig, PhaseConfig
from bert_jax.config.serialization import from_dict, to_dict
from bert_jax.data_pipeline.analysis.baselines import bigram_loss, unigram_loss
from bert_jax.data_pipeline.batch import prefetch
from bert_jax.data_pipeline.masking.mode import find_mode
from bert_jax.data_pipeline.pairing.modes import PAIRS, SEPARATED
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.errors import UserError
from bert_jax.metrics import records as metrics
from bert_jax.metrics.jsonl import EventLog
from bert_jax.metrics.neighbor_attention import neighbor_metrics
from bert_jax.metrics.records import objectives_in
from bert_jax.metrics.step_metrics import SumAccumulator
from bert_jax.objectives import total as objectives
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.registry import chosen, find
from bert_jax.parallel import global_batch
from bert_jax.parallel.global_batch import Batch
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runtime.console import console, progress, table
from bert_jax.training.batches import held_out_config, phase_batches
from bert_jax.training.step import StepFunctions, make_step_functions
from bert_jax.workdir.find_store import find_store
from bert_jax.workdir.layout import Workdir


class HeldOut:
    """The held-out split in the shapes of a phase; `evaluate` may be called repeatedly.

    A pass visits the same rows and masks in one fixed random order, so that a prefix is an unbiased
    sample. Rows past the end are empty and have zero weight.
    """

    def __init__(self, config: Config, phase: PhaseConfig, store: TokenStore):
        """Uses at most `config.evaluation.batches` * `phase.batch_size` rows; 0 batches = all."""
        eval_config = held_out_config(config, phase)
        self._batch_size = eval_config.phases[0].batch_size
        self._batches = phase_batches(eval_config, store, store.held_out, eval_config.phases[0])
        # Only RoBERTa's masking predicts special tokens, which the token counts do not include.
        predicted = find_mode(config.data.masking).masks_specials
        specials = self._batches.specials_per_token() if predicted else (0.0, 0.0)
        self.corpus = Corpus.of(store, specials)
        self._sources = store.sources
        total, limit = self._batches.rows_per_epoch, config.evaluation.batches * phase.batch_size
        self.rows = min(total, limit or total)
        self.num_batches = -(-self.rows // self._batch_size)

    def compile(self, program: StepFunctions) -> jax.stages.Compiled:
        """Compiles the evaluation step for batches of these rows."""
        return program.compile_evaluate(
            self._batches.evaluation_batch(0, rows=[]), self._batch_size
        )

    def evaluate(
        self,
        program: StepFunctions,
        params: dict,
        advance: Callable[[float], None] = lambda tokens: None,
        *,
        compiled: jax.stages.Compiled | None = None,
        begin: Callable[[], None] = lambda: None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Returns losses, accuracies and baselines of the held-out rows, and the attention on
        neighbouring tokens if the config measures it.

        Args:
            advance: called with the number of real tokens of each batch.
            compiled: the evaluation step, if it was compiled ahead of time.
            begin: called before each batch; an exception from it ends the evaluation.
            while_waiting: see `prefetch`.
        """
        totals, step = SumAccumulator(), compiled or program.evaluate

        def make(index: int) -> dict[str, jax.Array]:
            rows = functools.partial(self._batches.evaluation_batch, index)
            return global_batch.global_batch(rows, program.rows, self._batch_size)

        prepared = prefetch(make, 0, self.num_batches, while_waiting=while_waiting)
        for sums in evaluated(prepared, functools.partial(step, params), advance, begin):
            totals.add(sums)
        attention = totals.sums.pop("attention", None)
        scalars = objectives.summarize(totals.sums, self._sources)
        return scalars | (neighbor_metrics(attention) if attention else {})


def _check_pretrained(workdir: Workdir, description: Mapping[str, Any]) -> None:
    """Raises UserError for a run that was trained for a task: it has no held-out text."""
    if task := description["config"].get("task", {}).get("name"):
        raise UserError(
            f"{workdir}: fine-tuned for {task}; its results are in {workdir.path / 'results.json'},"
            " and `bert-jax predict` writes its predictions"
        )


def evaluated(
    batches: Generator[tuple[int, Batch]],
    step: Callable[[Batch], Any],
    advance: Callable[[float], None],
    begin: Callable[[], None],
) -> Iterator[Any]:
    """Yields the sums of each batch; closes the batches. advance, begin: see `HeldOut.evaluate`."""
    with closing(batches):
        for _, batch in batches:
            begin()
            sums = step(batch)
            yield sums
            advance(float(sums["tokens"]["real"]))


def evaluate_run(
    folder: epath.PathLike,
    which: int | Literal["best", "all"] | None = None,
    *,
    store: str | None = None,
    batches: int = 0,
    pairing: str | None = None,
    masking: str | None = None,
) -> list[dict[str, Any]]:
    """Evaluates checkpoints of a run, prints a table and appends to `Workdir.evaluations`.

    Args:
        folder: the workdir; may be a bucket.
        which: the step of the checkpoint to evaluate; the newest by default.
        store: a token store other than the run's, built with the same tokenizer.
        batches: maximum number of batches of the run's batch size, 0 = all held-out text.
        pairing, masking: how examples and masks are made; the run's settings by default.

    Returns:
        The records as written, one for each checkpoint.

    Raises:
        UserError: the checkpoint does not exist or belongs to another run, the store was built with
            another tokenizer, or the model has no head for `pairing`.
    """
    workdir = Workdir.open(folder)
    steps, known = find_steps(workdir, which), known_run(workdir)
    metas = [read_own_meta(workdir, step, known) for step in steps]
    newest = metas[-1]
    _check_pretrained(workdir, newest)
    config = _asked(from_dict(newest["config"], Config), store, batches, pairing, masking)
    path = store or find_store(workdir, config.data.store, newest["data"])
    text = _open(path, newest["data"], given=store is not None)
    phases = [from_dict(meta["config"], Config).phases[meta["phase"]] for meta in metas]
    measures = {phase: _Measure(config, phase, text) for phase in dict.fromkeys(phases)}
    records = []
    total = sum(measures[phase].held_out.num_batches for phase in phases)
    log = EventLog(workdir.evaluations)
    with progress("batches", total) as bar, closing(log):
        for meta, phase in zip(metas, phases, strict=True):
            scalars = measures[phase].evaluate(read_params(workdir, meta), bar)
            about = {
                "pairing": config.data.pairing,
                "masking": config.data.masking,
                "seq_length": phase.seq_length,
                "rows": measures[phase].held_out.rows,
                "held_out": text.held_out.digest,
            }
            line = metrics.line("evaluate", meta["step"], meta["phase"], {**about, **scalars})
            log.append(line)
            records.append(json.loads(line))
    console.print(_table(records, text.sources), markup=False)
    console.print(
        f"baselines over all held-out tokens: unigram {unigram_loss(text):.3f} nats, "
        f"bigram {bigram_loss(text):.3f} nats"
    )
    return records


def _asked(
    config: Config, store: str | None, batches: int, pairing: str | None, masking: str | None
) -> Config:
    """Returns the run's configuration with the overrides of the evaluation.

    Its objectives are those of the run that the evaluated data has labels for.

    Raises:
        UserError: the model has no head for `pairing`, or the data has no labels for the model.
    """
    learned = chosen(config.data, config.objectives)
    if pairing in PAIRS and pairing not in learned:
        raise UserError(
            f"--pairing={pairing}: the model has no head for it, as the run was trained with "
            f"pairing={config.data.pairing}; full_sentences, doc_sentences and single measure "
            "masked tokens only and work with any model"
        )
    overrides = {"store": store, "pairing": pairing, "masking": masking}
    values = to_dict(config.data) | {name: value for name, value in overrides.items() if value}
    if values["pairing"] not in SEPARATED:
        values["separators"] = "documents"
    values["span_boundary"] &= values["masking"] == "span"
    data = from_dict(values, DataConfig, "config.data")
    measured = ",".join(o.name for o in find(learned) if o.has_labels(data))
    if not measured:
        raise UserError(
            f"--pairing={pairing}: makes no labels for {', '.join(learned)}, the objectives of the "
            "run; leave it out"
        )
    evaluation = dataclasses.replace(config.evaluation, batches=batches)
    return dataclasses.replace(config, data=data, evaluation=evaluation, objectives=measured)


def _open(path: str, trained_on: dict[str, Any], *, given: bool) -> TokenStore:
    if not given and "://" not in path and not Path(path).exists():
        raise UserError(f"{path}: the run's token store does not exist any more; give --store=…")
    store = open_store(path)
    if store.tokenizer_digest != trained_on["tokenizer"]:
        raise UserError(
            f"{path}: built with tokenizer {store.tokenizer_digest[:12]}…, the run was trained "
            f"with {trained_on['tokenizer'][:12]}…; give a store built with that tokenizer"
        )
    if store.held_out.digest != trained_on["held_out"]:
        console.print(
            f"note: the held-out text of {path} is not the run's; "
            "the run may have been trained on some of it"
        )
    return store


class _Measure:
    """Evaluates parameters in the shapes of a phase, on as many devices as divide its batch."""

    def __init__(self, config: Config, phase: PhaseConfig, store: TokenStore):
        self.held_out = HeldOut(config, phase, store)
        eval_config = held_out_config(config, phase)
        rows, devices = eval_config.phases[0].batch_size, jax.devices()
        count = max(n for n in range(1, len(devices) + 1) if rows % n == 0)
        mesh = MeshConfig(slice=1, data=count, fsdp=1, tensor=1)
        compute = config.compute
        if compute.attention != "xla":  # a kernel that these devices may not support
            compute = dataclasses.replace(compute, attention="auto")
        eval_config = dataclasses.replace(eval_config, mesh=mesh, compute=compute)
        self._mesh = make_mesh(mesh, devices[:count])
        self._program = make_step_functions(eval_config, self._mesh, self.held_out.corpus)

    def evaluate(self, params: dict, bar: Any) -> dict[str, float]:
        """Returns the metrics of the parameters; advances the progress bar once per batch."""
        (task,) = bar.tasks
        tokens = 0.0

        def advance(more: float) -> None:
            nonlocal tokens
            tokens += more
            seconds = bar.get_time() - start
            bar.update(task.id, advance=1, rate=f"{tokens / max(seconds, 1e-9):,.0f} tokens/s")

        with jax.set_mesh(self._mesh):
            target = self._program.abstract["params"]
            placed = jax.tree.map(
                lambda x, like: jax.device_put(x, like.sharding), _part(params, target), target
            )
            start = bar.get_time()
            return self.held_out.evaluate(self._program, placed, advance)


def _part(params: dict, target: dict) -> dict:
    """Returns the parameters that `target` has: without the heads that are not evaluated."""
    return {
        name: _part(params[name], below) if isinstance(below, dict) else params[name]
        for name, below in target.items()
    }


def _table(records: Sequence[dict[str, Any]], sources: Sequence[str]) -> str:
    """Renders one line per record: the metrics of every objective next to its baselines."""
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("step", lambda r: str(r["step"])),
        ("phase", lambda r: str(r["phase"] + 1)),
        ("length", lambda r: str(r["seq_length"])),
        ("rows", lambda r: f"{r['rows']:,}"),
    ]

    def number(key: str, spec: str) -> Callable[[dict[str, Any]], str]:
        return lambda r: format(r[key], spec) if key in r else "-"

    for name in objectives_in(records[0]):
        pairs = f"{name}/source_accuracy" in records[0]
        trivial = "constant" if pairs else "unigram"
        columns += [
            (f"{name.upper()} loss", number(f"{name}/loss", ".4f")),
            (trivial, number(f"{name}/baseline_loss", ".4f")),
            ("accuracy", number(f"{name}/accuracy", ".2%")),
            (trivial, number(f"{name}/baseline_accuracy", ".2%")),
        ]
        for source in sources if pairs else ():
            columns += [
                (source, number(f"{name}/{source}/accuracy", ".2%")),
                ("constant", number(f"{name}/{source}/baseline_accuracy", ".2%")),
            ]
    return table([name for name, _ in columns], [[of(r) for _, of in columns] for r in records])
