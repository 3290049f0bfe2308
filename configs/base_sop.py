r"""BERT-base with ALBERT's sentence order in place of the next sentence.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --out=STORE
    bert-jax pretrain --config=base_sop --config.data.store=STORE --workdir=RUN

ALBERT's (Lan et al. 2019): the pair objective, two consecutive pieces of one document, swapped
with probability 1/2, to the letter. BERT's: everything else, so that a run beside `base` differs in
the objective alone.

Other than there: the model (ALBERT shares its layers' parameters and factorizes the word table);
masking by token, length 128, batch 256, AdamW. `--config.optimizer.name=lamb_albert` is ALBERT's
optimizer, and `--config.data.masking=ngram` its masking, but that an n-gram ends with its segment
here; there it may reach over a [SEP]. And as in `base`: activations between layers are bfloat16,
there float32; new pairs and masks in every epoch; losses over the whole batch.

Published for ALBERT-base, average of five tasks: 80.1 with sentence order, 79.2 with the next
sentence, 79.0 with neither (table 5, quoted from memory); for BERT-base nothing. Not measured here.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.pairing = "sop"
    return config
