"""`bert-jax evaluate`: the checkpoints of a run on held-out text, in one form or several.

See `evaluation_pass.py` for what is comparable, and `eval_setting.py` for the forms.
"""

# Over 300 lines: one command, from the checkpoints of a run to the table of their figures.

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
from etils import epath

from bert_jax.checkpoint.manager import find_steps, known_run, read_own_meta, read_params
from bert_jax.config.model_settings import generator_of
from bert_jax.config.optimizer_settings import Weights
from bert_jax.config.recorded import HEAD, settings_of
from bert_jax.config.schema import Config, MeshConfig, PhaseConfig
from bert_jax.config.serialization import from_dict
from bert_jax.data_pipeline.analysis.baselines import bigram_loss, unigram_loss
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.errors import UserError
from bert_jax.metrics import run_records as metrics
from bert_jax.metrics.jsonl import EventLog
from bert_jax.metrics.run_records import objectives_in
from bert_jax.objectives.disentangled_embeddings import GENERATOR
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.replaced_token_model import generator_params
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runtime.console import console, progress, table
from bert_jax.training import per_example
from bert_jax.training import step as step_module
from bert_jax.training.batches import held_out_config
from bert_jax.training.eval_setting import OWN, EvalSetting
from bert_jax.training.evaluation_pass import HeldOut
from bert_jax.training.per_example import PerExample
from bert_jax.workdir.find_store import find_store
from bert_jax.workdir.layout import Workdir


def task_of(folder: epath.PathLike) -> str:
    """Returns the name of the task that a run was fine-tuned for; "" for a pretraining run."""
    known = known_run(Workdir.open(folder))
    return str(known["config"].get("task", {}).get("name", "")) if known else ""


def pretrained(workdir: Workdir, description: Mapping[str, Any], batches: int) -> Config:
    """Returns the configuration of a run, evaluated on at most this many batches.

    Raises:
        UserError: it was trained for a task, so it has no held-out text.
    """
    if task := description["config"].get("task", {}).get("name"):
        found = [folder / "results.json" for folder in (workdir.path, workdir.path.parent)]
        results = next((file for file in found if file.is_file()), found[0])
        also = "`bert-jax predict` writes its predictions"
        if description["data"].get(HEAD, {}).get("vectors"):
            also = (
                f"`bert-jax evaluate --model={workdir}` with --scored_pairs=… or --retrieval=… "
                "measures its vectors"
            )
        raise UserError(
            f"{workdir}: fine-tuned for {task}; its results are in {results}, and {also}"
        )
    config = settings_of(description)
    limited = dataclasses.replace(config.evaluation, batches=batches, fills=0)
    return dataclasses.replace(config, evaluation=limited)


def evaluate_run(
    folder: epath.PathLike,
    which: int | Literal["best", "all"] | None = None,
    *,
    store: str | None = None,
    batches: int = 0,
    forms: Sequence[str] = (OWN,),
    pairing: str | None = None,
    masking: str | None = None,
    examples: epath.PathLike | None = None,
    weights: Weights = "last",
) -> list[dict[str, Any]]:
    """Evaluates checkpoints of a run, prints tables and appends to `Workdir.evaluations`.

    Args:
        folder: the workdir; may be a bucket.
        which: the step of the checkpoint to evaluate; the newest by default.
        store: a token store other than the run's, built with the same tokenizer.
        batches: maximum number of batches of the run's batch size, 0 = all held-out text.
        forms: names of evaluation settings, see `eval_setting`.
        pairing, masking: of the form `own`; the run's settings by default.
        examples: file for the values of every example, see `per_example`; of one checkpoint.
        weights: those of the step, or their average.

    Returns:
        The records as written, one for each checkpoint and form.

    Raises:
        UserError: the checkpoint does not exist or belongs to another run, the store was built with
            another tokenizer, no such form, or the model has no head for its pairing.
    """
    workdir = Workdir.open(folder)
    steps, known = find_steps(workdir, which), known_run(workdir)
    metas = [read_own_meta(workdir, step, known) for step in steps]
    newest = metas[-1]
    config = pretrained(workdir, newest, batches)
    phases = [from_dict(meta["config"], Config).phases[meta["phase"]] for meta in metas]
    asked = {
        phase: [asked_form(name, config, phase, pairing, masking) for name in dict.fromkeys(forms)]
        for phase in dict.fromkeys(phases)
    }
    path = store or find_store(workdir, config.data.store, newest["data"])
    text = _open(path, newest["data"], given=store is not None)
    measures = {phase: [Measure(each, text) for each in own] for phase, own in asked.items()}
    jobs = [(meta, measures[phase]) for meta, phase in zip(metas, phases, strict=True)]
    begun = time.perf_counter()
    records, values = _evaluate(workdir, jobs, weights, by_example=examples is not None)
    seconds = time.perf_counter() - begun
    bigram = bigram_loss(text)
    _print_results(records, text, bigram, config)
    if examples is not None:
        forms_of = {each.name: each.form for each in asked[phases[-1]]}
        about = _about(newest, text, forms_of, records, bigram_loss=bigram, seconds=seconds)
        per_example.write(examples, values, about)
        console.print(f"wrote {examples}", markup=False)
    return [record for own in records.values() for record in own]


def _about(
    meta: Mapping[str, Any],
    text: TokenStore,
    forms: Mapping[str, EvalSetting],
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    **figures: float,
) -> dict[str, Any]:
    """Returns what a file of examples records of the checkpoint with this `meta`, and figures."""
    return {
        **figures,
        "run_id": meta.get("run_id"),
        "step": meta["step"],
        "held_out": text.held_out.digest,
        "sources": text.sources,
        "forms": {
            name: {"settings": form.settings(), "metrics": records[name][-1]}
            for name, form in forms.items()
        },
    }


class Asked(NamedTuple):
    """A form, and the configuration of the run with it in its only phase."""

    name: str
    form: EvalSetting
    config: Config


def asked_form(
    name: str, config: Config, phase: PhaseConfig, pairing: str | None, masking: str | None
) -> Asked:
    """Returns the form of this name for a phase of a run; UserError as `EvalSetting.parse` and
    `EvalSetting.apply`."""
    if name == OWN:
        form = EvalSetting.of(config, phase, pairing=pairing, masking=masking)
    else:
        form = EvalSetting.parse(name, phase.seq_length)
    return Asked(name, form, form.apply(config, phase))


def _evaluate(
    workdir: Workdir,
    jobs: "Sequence[tuple[Mapping[str, Any], Sequence[Measure]]]",
    weights: Weights,
    *,
    by_example: bool,
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, PerExample]]:
    """Returns the records of each form as written, and if asked for the values of every example of
    the last checkpoint.

    jobs: the `meta` of each checkpoint with its measures.
    """
    records, values = dict[str, list[dict[str, Any]]](), dict[str, PerExample]()
    which = {"weights": weights} if weights != "last" else {}
    total = sum(measure.held_out.num_batches for _, measures in jobs for measure in measures)
    log = EventLog(workdir.evaluations)
    with progress("batches", total) as bar, closing(log):
        for meta, measures in jobs:
            params = read_params(workdir, meta, weights)
            for measure in measures:
                scalars, examples = measure.evaluate(params, bar, by_example=by_example)
                if examples:
                    values[measure.name] = examples
                written = {**measure.about, **which, **scalars}
                line = metrics.line("evaluate", meta["step"], meta["phase"], written)
                log.append(line)
                records.setdefault(measure.name, []).append(json.loads(line))
    return records, values


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


class Measure:
    """Evaluates parameters in a form, on as many devices as divide its batch."""

    def __init__(self, asked: Asked, store: TokenStore):
        config, (phase,) = asked.config, asked.config.phases
        self.name, self.held_out = asked.name, HeldOut(config, phase, store)
        self.about: dict[str, Any] = {
            "form": asked.name,
            "pairing": config.data.pairing,
            "masking": config.data.masking,
            "mask_rate": config.data.mask_rate,
            "seq_length": phase.seq_length,
            "rows": self.held_out.rows,
            "held_out": store.held_out.digest,
        }
        eval_config = held_out_config(config, phase)
        rows, devices = eval_config.phases[0].batch_size, jax.devices()
        count = max(n for n in range(1, len(devices) + 1) if rows % n == 0)
        mesh = MeshConfig(slice=1, data=count, fsdp=1, tensor=1)
        compute = config.compute
        if compute.attention != "xla":  # a kernel that these devices may not support
            compute = dataclasses.replace(compute, attention="auto")
        eval_config = dataclasses.replace(eval_config, mesh=mesh, compute=compute)
        self._mesh = make_mesh(mesh, devices[:count])
        self._program = step_module.make_step_functions(
            eval_config, self._mesh, self.held_out.corpus
        )

    def evaluate(
        self, params: dict, bar: Any, *, by_example: bool = False
    ) -> tuple[dict[str, float], PerExample | None]:
        """Returns the metrics of the parameters, and if asked for the values of every example;
        advances the progress bar once per batch.

        params: of a run of two networks those of both, whichever the form measures.
        """
        if GENERATOR in params and GENERATOR not in self._program.abstract["params"]:
            params = generator_params(params)
        (task,) = bar.tasks
        tokens = 0.0

        def advance(more: float) -> None:
            nonlocal tokens
            tokens += more
            seconds = bar.get_time() - start
            bar.update(task.id, advance=1, rate=f"{tokens / max(seconds, 1e-9):,.0f} tokens/s")

        with jax.set_mesh(self._mesh):
            placed = self._program.placed(params)
            start = bar.get_time()
            if by_example:
                return self.held_out.evaluate_examples(self._program, placed, advance)
            return self.held_out.evaluate(self._program, placed, advance), None


def _print_results(
    records: Mapping[str, Sequence[dict[str, Any]]], text: TokenStore, bigram: float, config: Config
) -> None:
    """Prints a table for each form, the baselines, and whose figures they are of two networks."""
    for own in records.values():
        console.print(_table(own, text.sources), markup=False)
    console.print("±: half of a 95 % interval, by the choice of documents")
    console.print(
        f"baselines over all held-out tokens: unigram {unigram_loss(text):.3f} nats, "
        f"bigram {bigram:.3f} nats"
    )
    if REPLACED_TOKENS.name in learned_by(config):
        width = generator_of(config.model).hidden_size
        console.print(
            f"{MASKED_LM.name.upper()}: of the run's generator, hidden_size={width} (of the "
            f"discriminator {config.model.hidden_size}), which alone predicts masked tokens",
            markup=False,
        )


def _table(records: Sequence[dict[str, Any]], sources: Sequence[str]) -> str:
    """Renders one line per record: the metrics of every objective next to its baselines."""
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        *([("form", lambda r: str(r["form"]))] if records[0]["form"] != OWN else []),
        *([("weights", lambda r: str(r["weights"]))] if "weights" in records[0] else []),
        ("step", lambda r: str(r["step"])),
        ("phase", lambda r: str(r["phase"] + 1)),
        ("length", lambda r: str(r["seq_length"])),
        ("rows", lambda r: f"{r['rows']:,}"),
    ]

    def number(key: str, spec: str) -> Callable[[dict[str, Any]], str]:
        def shown(record: dict[str, Any]) -> str:
            value = record.get(key)
            if not metrics.is_finite(value):
                return "-"
            return f"{value:{spec}}{metrics.margin(record, key, spec)}"

        return shown

    columns.append(("documents", number("documents", ",.0f")))
    for name in objectives_in(records[0]):
        pairs = f"{name}/source_accuracy" in records[0]
        trivial = metrics.baseline_word(records[0], name)
        columns += [
            (f"{name.upper()} predictions", number(f"{name}/count", ",.0f")),
            (f"{name.upper()} loss", number(f"{name}/loss", ".4f")),
            (trivial, number(f"{name}/baseline_loss", ".4f")),
            ("accuracy", number(f"{name}/accuracy", ".2%")),
            (trivial, number(f"{name}/baseline_accuracy", ".2%")),
        ]
        for source in sources:
            own = f"{name}/{source}"
            if pairs:
                columns.append((f"{source} accuracy", number(f"{own}/accuracy", ".2%")))
                columns.append(("constant", number(f"{own}/baseline_accuracy", ".2%")))
            elif f"{own}/loss" in records[0]:
                columns.append((f"{source} loss", number(f"{own}/loss", ".4f")))
    return table([name for name, _ in columns], [[of(r) for _, of in columns] for r in records])
