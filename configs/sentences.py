r"""Trains the vectors of sentences on pairs that belong together, with in-batch negatives.

    bert-jax finetune --config=sentences --config.init=RUN \
        --config.task.data=pairs.tsv --workdir=VECTORS

`pairs.tsv` has the columns `anchor`, `positive` and, if there are some, `negative`; other losses
are `--config.task.name=scored_pairs` and `labeled_pairs`.

The hyperparameters are those of training_nli_v2.py of UKPLab/sentence-transformers, which trains on
the entailed pairs of SNLI and MultiNLI with their contradictions as hard negatives: one epoch, a
peak rate of 2e-5, warm-up over a tenth of the steps and linear decay, weight decay 0.01, gradients
clipped at 1.0, mean pooling, cosines times 20. The rate, the warm-up and the one epoch are those of
SBERT (Reimers and Gurevych 2019, section 3.1). Published for SBERT's softmax on the same data
(table 1): BERT-base STS-B 77.03; not measured here.

Differences from training_nli_v2.py: 64 pairs in a batch (there: 128), of at most 128 tokens a text
(there: 75); equal texts of a batch are no negatives of each other (there: the sampler of batches
keeps them apart); a batch has an example of each stratum of lengths, and whole examples are packed
into rows, which changes no loss; vectors are normalized (there: not, which is the same for
cosines; with labels, SBERT's form is `--config.task.normalize=False`). Activations between layers
are bfloat16 (there: float16 or float32, `--config.compute.dtype=float32`).
"""

from ml_collections import ConfigDict

from bert_jax.configs import glue

SLICE = "v5e-4"


def get_config() -> ConfigDict:
    config = glue.get_config()
    config.task.name = "sentence_pairs"
    config.task.epochs = 1.0
    config.phases[0].batch_size = 64
    config.phases[0].examples_per_row = 64
    config.optimizer.learning_rate = 2e-5
    return config
