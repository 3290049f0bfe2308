r"""SpanBERT-base: spans of words are masked, and also predicted from the tokens at their boundary.

    bert-jax data build --source=wikiextractor:WIKI --source=books:BOOKS \
        --tokenizer=vocab.txt --cased --out=STORE
    bert-jax pretrain --config=spanbert_base --config.data.store=STORE --workdir=RUN

Joshi et al. 2019 with the hyperparameters of `pretraining/README.md` of facebookresearch/SpanBERT:
sentences of one document up to length 512, no pairs; spans of 1 to 10 words, P(l) ∝ 0.2·0.8^(l-1);
random tokens from the unigram distribution; the span boundary objective with weight 1; batch 256
(32 GPUs with 4096 tokens each), 2,400,000 updates, learning rate 1e-4, warmup 10,000, eps 1e-8,
clipping at 1; fairseq's schedule and weight decay. STORE must use the released cased vocabulary
(28,996 entries). Published: SQuAD 1.1/2.0 dev F1 92.4/83.6 (README). Not measured here.

Differences from the release: activations between layers are bfloat16 (release: the model is float16
with loss scaling, hence its clamp on attention scores). Losses are divided by the counts of the
global batch (release: of each GPU). A batch is 256 rows of any length (release: up to 4096 tokens
per GPU, in rows of similar length). Initial weights are truncated at two standard deviations. Bugs
not reproduced: lost blocks (`pairing/blocks.py`) and two learning rates of the schedule
(`bert_jax/optimizers/schedule.py`).

The README's command is for the large model; the authors' scripts for the base model (`all_slurm/`)
use learning rate 2.5e-4. From reading the code, not running it: that command divides the gradient
by the number of masked tokens a second time (`trainer.py`, `multiply_grads`), so clipping at 1 has
almost no effect and eps weighs about 600 times as much as here. Scripts that disable this use eps
1e-6 or 6e-6. Which of them trained the published model is not known.
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
