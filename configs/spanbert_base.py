r"""SpanBERT-base: spans of words masked at once, and predicted from the tokens beside them too.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --cased --out=STORE
    bert-jax pretrain --config=spanbert_base --config.data.store=STORE --workdir=RUN

Joshi et al. 2019 in the values of `pretraining/README.md` of facebookresearch/SpanBERT: sentences
of one document up to length 512, no pairs; spans of 1 to 10 words, P(l) ∝ 0.2·0.8^(l-1); a random
token drawn as often as in the text; the span boundary objective with weight 1; batch 256 (32 GPUs
of 4096 tokens), 2,400,000 updates, learning rate 1e-4, warmup 10,000, eps 1e-8, clipping at 1;
fairseq's schedule and weight decay. STORE has the 28,996 entries of the released cased vocabulary.
Published: SQuAD 1.1/2.0 dev F1 92.4/83.6 (README). Not measured here.

Other than there: activations between layers are bfloat16, there the whole model is float16 with a
scaled loss (the clamp on attention scores is for that). Losses are divided by the counts of the
whole batch, there by those of each GPU. A batch is 256 rows of any length, there what fits 4096
tokens on each GPU, rows of about one length together. First weights are cut at two deviations.
Slips that are not copied: blocks that are lost (`pairing/blocks.py`) and two rates of the schedule
(`bert_jax/training/schedule.py`).

The README's command is that of the large model; the authors' scripts for the base model
(`all_slurm/`) have learning rate 2.5e-4. Read, not run: that command divides the gradient by the
number of masked tokens once more (`trainer.py`, `multiply_grads`), so that clipping at 1 hardly
acts and eps weighs about 600 times as much as here. Scripts that switch this off have eps 1e-6 or
6e-6. Which of them made the published model is not known here.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.vocab_size = 28996
    config.data.pairing = "single"
    config.data.short_seq_prob = 0.0
    config.data.masking = "span"
    config.data.span_boundary = True
    config.data.random_tokens = "unigram"
    config.phases[0].steps = 2_400_000
    config.phases[0].seq_length = 512
    config.phases[0].max_predictions = 77
    config.optimizer.name = "adamw"
    config.optimizer.eps = 1e-8
    config.optimizer.schedule = "fairseq"
    config.optimizer.weight_decay_on = "all"
    return config
