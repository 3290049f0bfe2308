"""Package metadata and the supported releases of dependencies. `make` installs the exact versions
that requirements/ pins; tools are configured in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

CORE = [
    "jax>=0.10",  # arrays, autodiff, jit, sharding: all device computation
    "flax>=0.12.8",  # nnx.Module declares parameters and the forward pass
    "optax>=0.2.8",  # optimizer transformations
    "orbax-checkpoint>=0.12.8",  # checkpoint format, reading and writing
    "ml_collections>=1.1",  # config files and --config.x=y overrides
    "PyYAML>=6.0",  # config files of values
    "absl-py>=2.1",  # command-line flags, used by ml_collections
    "numpy>=2.0",  # host arrays, the token store
    "scipy>=1.14",  # intervals of ablations, sparse products of counts; JAX brings it anyway
    "threadpoolctl>=3.5",  # matrix products by one thread: the same bits on any number of cores
    "numba>=0.61",  # compiled loops for pairing, masking and batch assembly
    "tokenizers>=0.21",  # WordPiece, trained or from vocab.txt; writes the exported tokenizer.json
    "sentencepiece>=0.2",  # trains unigram and BPE vocabularies; tokenizers does all encoding
    "sentencex>=1.0.32",  # sentence splitting for many languages at 45 MB/s
    "safetensors>=0.5",  # the exported weights
    "huggingface_hub>=0.34",  # names on the hub
    "google-crc32c>=1.6",  # the checksums in TensorFlow checkpoints and records, in C
    "etils[epath]>=1.10",  # one path type for local and bucket paths
    "tensorboardX>=2.6",  # TensorBoard event files without TensorFlow
    "rich>=13",  # progress bars and tables
    "matplotlib>=3.9",  # the plots of report.html
]

EXTRAS = {
    "tpu": ["jax[tpu]>=0.10"],  # libtpu for Cloud TPU machines
    "cuda": ["jax[cuda13]>=0.10"],  # CUDA libraries for NVIDIA GPUs
    "torch": [
        # reference for parity tests and speed comparisons; pytorch_model.bin, which releases before
        # 2.10 do not read safely
        "torch>=2.10",
        "transformers>=4.57",  # loads what `convert export` writes
    ],
    "finetune": [
        "scikit-learn>=1.5",  # accuracy, F1, Matthews correlation; the bag-of-words baseline
        "seqeval>=1.2.2",  # F1 of entities, as conlleval computes it
    ],
    "search": ["bm25s>=0.3"],  # BM25 beside the searches of `evaluate --retrieval`, NumPy alone
    "gcs": ["gcsfs>=2026.9"],  # gs:// for etils.epath; TensorStore has its own client
    "arrow": ["pyarrow>=21"],  # Parquet and Arrow, read and written; text compressed with zstd
    "tfds": ["tensorflow-datasets>=4.9.8"],  # prepared datasets and TFRecords, without TensorFlow
    "dump": ["mwparserfromhell>=0.7"],  # parses the wikitext of Wikipedia dumps, in C
    "dedup": ["rensa>=0.5"],  # MinHash signatures in Rust, for `data build --dedup=near`
    "beam": ["apache-beam>=2.77"],  # `data build --runner=beam`; for Dataflow also apache-beam[gcp]
    "wandb": ["wandb>=0.31"],  # pretrain --wandb; from 0.31 on, a wait for uploads has a limit
    "docs": [
        "sphinx>=8.2",  # builds the site of docs/, as for JAX and Flax, and its search
        "myst-parser>=4.0",  # reads the same Markdown that GitHub shows
        "furo>=2025.7",  # a theme whose pages fetch nothing
    ],
    "dev": [
        "pytest>=8,<9.2",  # test runner; from 9.2 on, pytest-xdist 3.8 ignores groups (its #1386)
        "pytest-xdist>=3.8",  # parallel tests; those that start processes run one at a time
        "scikit-learn>=1.5",  # tests of metrics
        "seqeval>=1.2.2",  # the same
        "bm25s>=0.3",  # tests of `evaluate --retrieval`
        "gcsfs>=2026.9",  # bucket tests against a local emulator
        "rensa>=0.5",  # tests of --dedup=near
        "wandb>=0.31",  # tests of --wandb, offline
        "pyarrow>=21",  # tests of Parquet, Arrow and zstd
        "tensorflow-datasets>=4.9.8",  # tests of prepared datasets and TFRecord files
        "kubernetes-validate>=1.34",  # Kubernetes' schemas, for the manifests of `launch gke`
        "kubeflow-trainer-api>=2.3",  # JobSet's schema, for the same
        "mwparserfromhell>=0.7",  # tests of Wikipedia dumps
        "hypothesis>=6.100",  # property tests over document and sentence lengths
        "ruff>=0.8",  # lint and format
        "mypy>=1.13",  # types
    ],
}

URL = "https://github.com/bert-jax/bert-jax"


def readme() -> str:
    """The README with absolute links: a package index has no files next to it."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https:)", rf"\1{URL}/raw/main/", text)
    return re.sub(r"(\]\()(?!https:|#)", rf"\1{URL}/blob/main/", text)


setup(
    name="bert-jax",
    version="0.2.0",
    description=(
        "Pretrain BERT-family encoders on TPU pods: "
        "raw text to a checkpoint that transformers loads"
    ),
    author="The bert-jax authors",
    url=URL,
    project_urls={
        "Documentation": f"{URL}/blob/main/docs/index.md",
        "Changes": f"{URL}/blob/main/CHANGELOG.md",
        "Issues": f"{URL}/issues",
    },
    keywords=["bert", "pretraining", "masked language model", "jax", "flax", "tpu", "nlp"],
    long_description=readme(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=[
        "bert_jax",
        "bert_jax.ablation",
        "bert_jax.aot",
        "bert_jax.aot.cost",
        "bert_jax.aot.hlo",
        "bert_jax.api",
        "bert_jax.checkpoint",
        "bert_jax.commands",
        "bert_jax.config",
        "bert_jax.configs",
        "bert_jax.configs.ablations",
        "bert_jax.convert",
        "bert_jax.convert.folders",
        "bert_jax.convert.layouts",
        "bert_jax.convert.tensorflow",
        "bert_jax.data_pipeline",
        "bert_jax.data_pipeline.analysis",
        "bert_jax.data_pipeline.export",
        "bert_jax.data_pipeline.folders",
        "bert_jax.data_pipeline.masking",
        "bert_jax.data_pipeline.pairing",
        "bert_jax.data_pipeline.plan",
        "bert_jax.data_pipeline.random",
        "bert_jax.data_pipeline.sources",
        "bert_jax.data_pipeline.store",
        "bert_jax.data_pipeline.store_build",
        "bert_jax.data_pipeline.text",
        "bert_jax.data_pipeline.tokenizer",
        "bert_jax.demo",
        "bert_jax.distributed",
        "bert_jax.extensions",
        "bert_jax.finetune",
        "bert_jax.finetune.tasks",
        "bert_jax.hardware",
        "bert_jax.launch",
        "bert_jax.launch.gke",
        "bert_jax.launch.sky",
        "bert_jax.launch.slurm",
        "bert_jax.launch.tpu",
        "bert_jax.launch.tpu.agent",
        "bert_jax.metrics",
        "bert_jax.model",
        "bert_jax.objectives",
        "bert_jax.ops",
        "bert_jax.ops.attention",
        "bert_jax.optimizers",
        "bert_jax.parallel",
        "bert_jax.publish",
        "bert_jax.reporting",
        "bert_jax.runtime",
        "bert_jax.storage",
        "bert_jax.training",
        "bert_jax.workdir",
    ],
    package_data={
        "bert_jax": ["py.typed"],
        "bert_jax.config": ["unknown_keys.toml"],
        "bert_jax.data_pipeline.text": ["wikitext_words.toml"],
        "bert_jax.launch.tpu.agent": ["startup.sh"],
        "bert_jax.reporting": ["*.js", "*.css"],
    },
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["bert-jax=bert_jax.cli:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
