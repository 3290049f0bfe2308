"""`bert-jax evaluate`: checkpoints of a run on held-out text, or the vectors of a model."""

from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, define_weights, help_of, need
from bert_jax.commands.kinds import example_values
from bert_jax.commands.paths import define_input, define_output, model_paths
from bert_jax.errors import UsageError

_OF_TEXT = ("best", "store", "batches", "pairing", "masking", "form")  # not for a task
_OF_RUN = ("workdir", "step", "all", *_OF_TEXT, "weights", "per_example")  # not for --model
_OF_VECTORS = ("scored_pairs", "retrieval", "beside", "json")  # for --model alone


def _define_evaluate(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.data_pipeline.masking.masking_settings import MODES as MASKING
    from bert_jax.data_pipeline.pairing.modes import MODES as PAIRING

    workdir = "folder of a pretraining run; with --per_example also of a fine-tuned one"
    define_input(values, "workdir", workdir)
    step = "step of the checkpoint (default: the newest)"
    flags.DEFINE_integer("step", None, step, 0, flag_values=values)
    flags.DEFINE_bool("all", False, "evaluate all checkpoints", flag_values=values)
    best = "evaluate the checkpoint with the lowest held-out loss in its last phase"
    flags.DEFINE_bool("best", False, best, flag_values=values)
    store = "another token store with the same tokenizer (default: the run's)"
    define_input(values, "store", store)
    batches = "maximum number of batches (default: all held-out text)"
    flags.DEFINE_integer("batches", 0, batches, 0, flag_values=values)
    for name, choices, what in (
        ("pairing", PAIRING, "how examples are built"),
        ("masking", MASKING, "how tokens are masked"),
    ):
        help_text = f"{what}: {', '.join(choices)} (default: the run's)"
        flags.DEFINE_enum(name, None, list(choices), help_text, flag_values=values)
    define_weights(values)
    form = (
        "evaluation setting: own (default, as the run was trained), PAIRING/MASKING, such as "
        "single/span, or PAIRING/MASKING@RATE (may be repeated)"
    )
    flags.DEFINE_multi_string("form", [], form, flag_values=values)
    examples = "FILE.npz for the loss and the hits of every held-out example"
    define_output(values, "per_example", examples, example_values)
    _define_vectors(values)
    define_cpu_devices(values)


def _define_vectors(values: flags.FlagValues) -> None:
    model = "folder of a model, or a run, whose vectors are evaluated; in place of --workdir"
    define_input(values, "model", model, locate=model_paths)
    pairs = (
        "for --model: .tsv, .csv or .jsonl file with the columns sentence1, sentence2 and score, "
        "or GLUE's folder of STS-B"
    )
    define_input(values, "scored_pairs", pairs)
    retrieval = "for --model: folder with queries, corpus and qrels, in BEIR's form or as tables"
    define_input(values, "retrieval", retrieval)
    beside = "for --model: another model to compare it with (may be repeated)"
    define_input(values, "beside", beside, locate=model_paths, repeated=True)
    flags.DEFINE_bool("json", False, "for --model: print one JSON object", flag_values=values)


def _run_evaluate(values: flags.FlagValues, words: Sequence[str]) -> None:
    if values.model:
        _evaluate_vectors(values)
        return
    if given := [name for name in _OF_VECTORS if values[name].present]:
        raise UsageError(f"--{given[0]} needs --model=… ({help_of(values, 'model')})")
    need(values, "workdir")
    which = [name for name in ("step", "all", "best") if values[name].value not in (None, False)]
    if len(which) > 1:
        raise UsageError(f"--{which[0]} and --{which[1]} together: give one of them")
    if values.per_example and values.all:
        raise UsageError("--per_example and --all together: give one checkpoint")
    changed = [name for name in ("pairing", "masking") if values[name].value]
    if values.form and changed:
        raise UsageError(f"--form and --{changed[0]} together: a form has both; give one of them")
    from bert_jax.runtime import compile_cache
    from bert_jax.runtime.cpu import use_cpu_devices
    from bert_jax.training.evaluate import evaluate_run, task_of

    if values.cpu_devices:
        use_cpu_devices(values.cpu_devices)
    compile_cache.use()
    if values.per_example and task_of(values.workdir):
        _evaluate_task(values)
        return
    evaluate_run(
        values.workdir,
        "all" if values.all else "best" if values.best else values.step,
        store=values.store,
        batches=values.batches,
        pairing=values.pairing,
        masking=values.masking,
        forms=values.form or ("own",),
        examples=values.per_example,
        weights=values.weights,
    )


def _evaluate_vectors(values: flags.FlagValues) -> None:
    """Prints what the vectors of a model are worth."""
    if given := [name for name in _OF_RUN if values[name].present]:
        raise UsageError(
            f"--model and --{given[0]} together: --{given[0]} is for held-out text of a run"
        )
    named = [name for name in ("scored_pairs", "retrieval") if values[name].value]
    if len(named) != 1:
        together = "not both" if named else "one of them"
        raise UsageError(f"--model needs --scored_pairs=… or --retrieval=…, {together}")
    from bert_jax.runtime import compile_cache, cpu

    cpu.use_cpu_devices(values.cpu_devices)
    compile_cache.use()
    cpu.keep_memory()
    from bert_jax.api.vector_evaluation import evaluate_retrieval, evaluate_scored_pairs
    from bert_jax.runtime.console import console

    evaluate = evaluate_scored_pairs if values.scored_pairs else evaluate_retrieval
    found = evaluate(values.model, values[named[0]].value, values.beside)
    console.print(found.as_json() if values.json else found.as_text(), markup=False)


def _evaluate_task(values: flags.FlagValues) -> None:
    """Writes the values of every held-out example of a task."""
    given = [name for name in _OF_TEXT if values[name].present]
    if given:
        raise UsageError(f"--{given[0]}: {values.workdir} is fine-tuned for a task; leave it out")
    from bert_jax.finetune.task_examples import write_task_examples

    write_task_examples(values.workdir, values.per_example, values.step, values.weights)


COMMANDS = {
    "evaluate": Command(
        "evaluate checkpoints of a run on held-out text, or the vectors of a model",
        "bert-jax evaluate --workdir=run --all",
        _define_evaluate,
        _run_evaluate,
    ),
}
