r"""DistilBERT: six layers learn from the predictions and the states of BERT-base.

    bert-jax convert import --from=hf:google-bert/bert-base-uncased --out=teacher
    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=teacher --out=STORE
    bert-jax pretrain --config=distil --config.teacher=teacher --config.data.store=STORE \
        --workdir=RUN

Sanh et al. 2019 (arXiv 1910.01108) and its research code: 5 · T² · KL at T = 2 over all real
positions, 2 · masked tokens, 1 · (1 - cosine) of the last states; the student starts as layers 0,
2, 4, 7, 9 and 11, embeddings and head of its teacher, and its position table stays; 15 % of the
positions, drawn with p ∝ count^-0.7; AdamW at 5e-4, warmup 5 %, no weight decay, gradients clipped
at 5; at most 512 tokens, no pairs, 3 epochs. 66,985,530 parameters, as in transformers'
DistilBertForMaskedLM. Published: 77.0 on the development sets of GLUE, BERT-base 79.5; not measured
here. For a teacher of your own: `--config.teacher=RUN@STEP`, with its widths, as many of its layers
as the student has in `--config.distillation.teacher_layers`, and its dropout in the student's.

Differences from the research code: activations between layers are bfloat16. Masks are drawn in each
example (there: over the whole batch of a GPU). The number of steps is fixed, about 3 epochs of 3.3
billion tokens in batches of 4,000 rows of full sentences. The learning rate falls linearly to zero
as there. Attention dropout stays on, so attention is XLA's.

micro_batches: not run; see `bert-jax compile`, which takes a BERT with twice the layers for the
teacher if none is given.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 1.7 on v5e-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.layout = "distilbert"
    config.model.type_vocab_size = 0
    config.model.num_hidden_layers = 6
    config.distillation.teacher_layers = "0,2,4,7,9,11"
    config.data.pairing = "full_sentences"
    config.data.masking = "frequency"
    config.phases[0].seq_length, config.phases[0].max_predictions = 512, 77
    config.phases[0].batch_size, config.phases[0].micro_batches = 4000, 25
    config.phases[0].steps = 5_000
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 5e-4, 250
    config.optimizer.weight_decay, config.optimizer.clip_norm = 0.0, 5.0
    config.optimizer.frozen = "encoder/embeddings/position"
    return config
