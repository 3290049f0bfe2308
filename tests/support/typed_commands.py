"""What the tests type in place of commands of the pages, and why."""

from typing import NamedTuple

SMALLEST = (
    "--config.model.hidden_size=32 --config.model.num_hidden_layers=2 "
    "--config.model.num_attention_heads=2 --config.model.intermediate_size=64 "
    "--config.phases[0].steps=4 --config.phases[0].batch_size=8 --config.log_every_steps=2 "
    "--config.checkpoint.every_steps=2 --config.evaluation.batches=1 "
    "--config.compute.unroll_layers=1"
)
_SHORT = {
    "steps": 2, "batch_size": 8, "micro_batches": 1, "seq_length": 32, "max_predictions": 10,
    "examples_per_row": 2, "decay_share": 0.0,
}  # fmt: skip
THREE_PHASES = " ".join(
    f"'--config.phases[{i}].{key}={value}'" for i in range(3) for key, value in _SHORT.items()
)
FINE_TUNED = SMALLEST.replace("phases[0].steps=4", "task.epochs=0.5")  # epochs decide the steps
COMPILED = (
    "--phase=0 --config.model.hidden_size=128 --config.model.num_hidden_layers=1 --config.model."
    "num_attention_heads=2 --config.model.intermediate_size=128 --config.model.vocab_size=128"
)


class Typed(NamedTuple):
    """What is typed in place of a command that begins with `start`, and why."""

    start: str
    instead: str  # {} is the command; empty: nothing is typed
    why: str


# All that the test types differently. The first row that fits a command counts.
TYPED = (
    Typed(
        "make demo DATA=/data/books",
        "bert-jax demo --data=./books --steps=4",
        "make needs an index; fewer steps",
    ),
    Typed(
        "make demo",
        ".venv/bin/bert-jax demo --data=./books --workdir=demo_run --steps=4",
        "the same; other text than Python's, of which .ci/run types it",
    ),
    Typed(
        "bert-jax data tokenizer --source=python ",
        "bert-jax data tokenizer --source=books:./books --vocab_size=2000 --out=python.json",
        "other text, as in the demo",
    ),
    Typed(
        "bert-jax data build --source=python ",
        "bert-jax data build --source=books:./books --tokenizer=python.json --out=python_store",
        "the same",
    ),
    Typed("bert-jax demo", "{} --steps=4", "fewer steps"),
    Typed("make", "", "needs an index, or hours; .ci/run and `make nightly` run the targets"),
    Typed("pip", "", "needs a package index; `make` in .ci/run installs"),
    Typed("export BERT_JAX_LIBTPU=", "", "names what pip would have installed"),
    Typed("export BERT_JAX_GPU_COMPILER=", "", "the same"),
    Typed("wget", "", "needs the network"),
    Typed("hf download", "", "the same; the folder has what it would write"),
    Typed("tfds build", "", "needs TensorFlow and the network"),
    Typed(
        "bert-jax data build --runner=beam", "", "needs a cloud; tests/data_pipeline/test_beam.py"
    ),
    Typed(
        "bert-jax convert import --from=uncased",
        "bert-jax convert import --from=exported --out=model",
        "the released zip is on the network; tests/convert/test_import.py has one",
    ),
    Typed(
        "bert-jax convert import --from=pretraining_output",
        "bert-jax convert export --workdir=continued --step=2 --out=interrupted --optimizer_state",
        "no run of TensorFlow is here; tests/training/test_google_optimizer.py continues one",
    ),
    Typed(
        "bert-jax convert import --from=hf:answerdotai/",
        "bert-jax convert export --workdir=run_ettin --out=modernbert",
        "needs the network; a ModernBERT that was trained above",
    ),
    Typed("bert-jax convert import --from=hf:", "", "needs the network; the same tests have a hub"),
    Typed(
        "bert-jax data build --source=hf:",
        "",
        "the network; tests/data_pipeline/test_hub_datasets.py has a hub",
    ),
    Typed(
        "bert-jax pretrain --config=continue_domain --config.init=hf:",
        "",
        "the network; tests/training/test_hub_names.py has a hub",
    ),
    Typed("bert-jax fill --model=hf:", "", "the network; tests/convert/test_folders_of_others.py"),
    Typed(
        "bert-jax convert export --workdir=run --out=pushed",
        "",
        "a hub is in tests/publish/test_push.py",
    ),
    Typed("bert-jax convert push", "", "the same"),
    Typed("bert-jax convert verify hf:", "", "tests/convert/test_comparing_models.py has both"),
    Typed(
        "bert-jax pretrain --time_budget=20m",
        "bert-jax pretrain --config=demo --config.data.store=domain_store --workdir=domain_run "
        f"{SMALLEST}",
        "a smaller model, fewer steps; docs/training.md has a budget that is typed",
    ),
    Typed(
        "bert-jax pretrain --time_budget=",
        f"{{}} {SMALLEST} --config.optimizer.warmup_steps=1 --time_budget=90s",
        "fewer steps",
    ),
    Typed(
        "bert-jax pretrain --config=ettin_17m",
        f"{{}} {SMALLEST} {THREE_PHASES} --config.optimizer.warmup_steps=1",
        "smaller, fewer steps, short rows",
    ),
    Typed(
        "bert-jax pretrain --config=albert_base",
        f"{{}} {SMALLEST} '--config.phases[0].micro_batches=1'",
        "a smaller model, fewer steps",
    ),
    Typed(
        "bert-jax pretrain --config=wiki_books_small --config.teacher=",
        "bert-jax pretrain --config=wiki_books_small --config.teacher=run_teacher@4 "
        f"--config.data.store=store --workdir=run_student {SMALLEST} "
        "--config.distillation.teacher_layers=1,0",
        "a smaller model, fewer steps, layers that it has",
    ),
    Typed(
        "bert-jax pretrain --config=electra_small",
        f"{{}} {SMALLEST} --config.model.embedding_size=16 --config.model.generator.hidden_size=16 "
        "--config.model.generator.intermediate_size=32",
        "a smaller model, fewer steps",
    ),
    Typed(
        "bert-jax pretrain --config=wiki_books_small --config.data.store=speedrun_60/store",
        "bert-jax pretrain --config=wiki_books_small --config.data.store=store "
        "--workdir=run_counted_only --config.optimizer.warmup_steps=0 "
        f"--config.checkpoint.keep_start=True {SMALLEST}",
        "the store of a benchmark, which takes an hour; a smaller model",
    ),
    Typed("bert-jax pretrain", f"{{}} {SMALLEST}", "a smaller model, fewer steps"),
    Typed("bert-jax ablate run", "{} --plan", "25 runs; tests/ablation/test_ablate.py has 6"),
    Typed("bert-jax ablate report", "", "the same; no run has ended"),
    Typed("bert-jax launch local run", f"{{}} {SMALLEST}", "a smaller model, fewer steps"),
    Typed("bert-jax data build --module=", "", "tests/extensions has its files, and types it"),
    Typed("bert-jax finetune --module=", "", "the same"),
    Typed("bert-jax predict --module=", "", "the same"),
    Typed("bert-jax finetune", f"{{}} {FINE_TUNED}", "a smaller model, fewer steps"),
    Typed("bert-jax launch slurm run --name", "", "tests/launch/test_slurm_cluster.py has Slurm"),
    Typed("bert-jax launch slurm st", "", "the same"),
    Typed("bert-jax launch tpu", "", "needs a cloud; tests/launch/test_tpu_cloud.py has one"),
    Typed("bert-jax launch gke", "", "needs a cluster; tests/launch/test_gke.py has a server"),
    Typed("gcloud", "", "needs an account; nothing of bert-jax"),
    Typed("kubectl", "", "needs a cluster; nothing of bert-jax"),
    Typed("docker", "", "needs a daemon and a registry"),
    Typed("bert-jax convert export --workdir=gs://", "", "the same with a bucket"),
    Typed(
        "bert-jax compile --config=large --topology=v5e-64 --sweep",
        f"{{}} {COMPILED} --sweep_minutes=0.1",
        "a smaller model",
    ),
    Typed("bert-jax compile", f"{{}} {COMPILED}", "a smaller model"),
    Typed("python benchmarks/", "{} --help", "takes hours"),
    Typed("OPENBLAS_NUM_THREADS=1 python benchmarks/", "{} --help", "the same"),
)
