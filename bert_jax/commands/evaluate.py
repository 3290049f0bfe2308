"""`bert-jax evaluate`: checkpoints of a run on held-out text, or any model: on held-out text, on a
text, on minimal pairs, or its vectors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, define_weights, help_of, need
from bert_jax.commands.kinds import example_values
from bert_jax.commands.paths import define_input, define_output, model_paths
from bert_jax.errors import UsageError

if TYPE_CHECKING:
    from bert_jax.api.evaluation_table import Evaluation

_OF_TEXT = ("best", "store", "batches", "pairing", "masking", "form")  # not for a task
_OF_RUN = ("workdir", "step", "all", "best", "weights", "per_example")  # not for --model
_WITH_STORE = ("batches", "pairing", "masking", "form")  # and with --model no use without --store
_ON = ("store", "text", "pairs", "scored_pairs", "retrieval")  # of --model: one of them
_OF_MODEL = (*_ON[1:], "pairs_method", "split", "beside", "json")  # for --model alone

_METHODS = ["token", "word_l2r"]  # pseudo_likelihood.METHODS, which imports NumPy


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
    store = "another token store with the same tokenizer (default: the run's); needed by --model"
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
        "evaluation setting: own (default, as config.data of the run), PAIRING/MASKING, such as "
        "single/span, or PAIRING/MASKING@RATE (may be repeated)"
    )
    flags.DEFINE_multi_string("form", [], form, flag_values=values)
    examples = "FILE.npz for the loss and the hits of every held-out example"
    define_output(values, "per_example", examples, example_values)
    _define_model(values)
    define_cpu_devices(values)


def _define_model(values: flags.FlagValues) -> None:
    model = "folder of a model, hf:OWNER/NAME, or a run, that is evaluated; in place of --workdir"
    define_input(values, "model", model, locate=model_paths)
    text = "for --model: file with a text on every line, whose pseudo-perplexity is measured"
    define_input(values, "text", text)
    minimal = (
        "for --model: minimal pairs, a .jsonl file in BLiMP's form (sentence_good, "
        "sentence_bad), a folder of such files, or hf:OWNER/NAME"
    )
    define_input(values, "pairs", minimal, on_hub=True)
    method = (
        "for --pairs: mask each token alone (token), or with the tokens of its word that follow "
        "(word_l2r)"
    )
    flags.DEFINE_enum("pairs_method", _METHODS[0], _METHODS, method, flag_values=values)
    pairs = (
        "for --model: .tsv, .csv, .jsonl or .parquet file with the columns sentence1, sentence2 "
        "and score or label, GLUE's folder of STS-B, or hf:OWNER/NAME"
    )
    define_input(values, "scored_pairs", pairs, on_hub=True)
    retrieval = "for --model: folder with queries, corpus and qrels, in BEIR's form or as tables"
    define_input(values, "retrieval", retrieval)
    split = "for --retrieval: split whose qrels are read, such as dev (default: test)"
    flags.DEFINE_string("split", None, split, flag_values=values)
    beside = "for vectors: another model to compare it with (may be repeated)"
    define_input(values, "beside", beside, locate=model_paths, repeated=True)
    flags.DEFINE_bool("json", False, "for --model: print one JSON object", flag_values=values)


def _run_evaluate(values: flags.FlagValues, words: Sequence[str]) -> None:
    if values.model:
        _evaluate_model(values)
        return
    if given := [name for name in _OF_MODEL if values[name].present]:
        raise UsageError(f"--{given[0]} needs --model=… ({help_of(values, 'model')})")
    need(values, "workdir")
    which = [name for name in ("step", "all", "best") if values[name].value not in (None, False)]
    if len(which) > 1:
        raise UsageError(f"--{which[0]} and --{which[1]} together: give one of them")
    if values.per_example and values.all:
        raise UsageError("--per_example and --all together: give one checkpoint")
    _check_form(values)
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


def _check_form(values: flags.FlagValues) -> None:
    changed = [name for name in ("pairing", "masking") if values[name].value]
    if values.form and changed:
        raise UsageError(f"--form and --{changed[0]} together: a form has both; give one of them")


def _evaluate_model(values: flags.FlagValues) -> None:
    """Prints what a model, or its vectors, are worth."""
    if given := [name for name in _OF_RUN if values[name].present]:
        raise UsageError(
            f"--model and --{given[0]} together: --{given[0]} is for held-out text of a run"
        )
    named = [name for name in _ON if values[name].value]
    if len(named) != 1:
        wanted = ", ".join(f"--{name}=…" for name in _ON[:-1])
        together = "not several" if named else "one of them"
        raise UsageError(f"--model needs {wanted} or --{_ON[-1]}=…, {together}")
    (on,) = named
    for names, data in (
        (_WITH_STORE, ("store",)), (("pairs_method",), ("pairs",)),
        (("split",), ("retrieval",)), (("beside",), ("scored_pairs", "retrieval")),
    ):  # fmt: skip
        if on not in data and (given := [name for name in names if values[name].present]):
            needed = " or ".join(f"--{one}=…" for one in data)
            raise UsageError(f"--{given[0]} and --{on} together: --{given[0]} needs {needed}")
    _check_form(values)
    from bert_jax.runtime import compile_cache, cpu

    cpu.use_cpu_devices(values.cpu_devices)
    compile_cache.use()
    cpu.keep_memory()
    from bert_jax.runtime.console import console

    found = _measured(on, values)
    console.print(found.as_json() if values.json else found.as_text(), markup=False)


def _measured(on: str, values: flags.FlagValues) -> "Evaluation":
    """Returns what a model is worth on the value of the flag `on`."""
    model, path = values.model, values[on].value
    if on == "store":
        from bert_jax.api.held_out_evaluation import evaluate_held_out

        return evaluate_held_out(
            model,
            path,
            batches=values.batches,
            forms=values.form or ("own",),
            pairing=values.pairing,
            masking=values.masking,
        )
    if on in ("text", "pairs"):
        from bert_jax.api.text_evaluation import evaluate_pairs, evaluate_text

        if on == "text":
            return evaluate_text(model, path)
        return evaluate_pairs(model, path, values.pairs_method)
    from bert_jax.api.vector_evaluation import evaluate_retrieval, evaluate_scored_pairs

    if on == "scored_pairs":
        return evaluate_scored_pairs(model, path, values.beside)
    return evaluate_retrieval(model, path, values.beside, values.split)


def _evaluate_task(values: flags.FlagValues) -> None:
    """Writes the values of every held-out example of a task."""
    given = [name for name in _OF_TEXT if values[name].present]
    if given:
        raise UsageError(f"--{given[0]}: {values.workdir} is fine-tuned for a task; leave it out")
    from bert_jax.finetune.task_examples import write_task_examples

    write_task_examples(values.workdir, values.per_example, values.step, values.weights)


COMMANDS = {
    "evaluate": Command(
        "evaluate checkpoints of a run, or any model: held-out text, minimal pairs, vectors",
        "bert-jax evaluate --workdir=run --all",
        _define_evaluate,
        _run_evaluate,
    ),
}
