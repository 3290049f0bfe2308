r"""BERT-base with ALBERT's sentence order prediction instead of next sentence prediction.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=base_sop --config.data.store=STORE --workdir=RUN

From ALBERT (Lan et al. 2019): exactly the pair objective, two consecutive segments of one document,
swapped with probability 1/2. From BERT: everything else, so that this run differs from `base` only
in the objective.

Differences from ALBERT: the model (ALBERT shares parameters across layers and factorizes the word
embeddings); masking by token, length 128, batch 256, AdamW. `--config.optimizer.name=lamb_albert`
selects ALBERT's optimizer, and `--config.data.masking=ngram` its masking, except that an n-gram
ends with its segment here (ALBERT's may cross a [SEP]). As in `base`, activations between layers
are bfloat16 (ALBERT: float32); pairs and masks are new in every epoch; losses are means over the
global batch.

Published for ALBERT-base, average of five tasks: 80.1 with sentence order, 79.2 with next sentence,
79.0 with neither (table 5, quoted from memory); nothing for BERT-base. Not measured here.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.pairing = "sop"
    return config
