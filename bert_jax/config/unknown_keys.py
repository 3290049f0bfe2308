"""Hints for names that are not configuration keys: misspelled, or the name in other programs.

The other names are those of transformers (`TrainingArguments`, `run_mlm`), google-research/bert,
Megatron, PyTorch and optax.
"""

from collections.abc import Iterable
from typing import Final

from bert_jax.errors import nearest_name

# Key -> its names in other programs.
_OTHER_NAMES: Final = {
    "optimizer.name": "optim opt optimizer_name optimizer_type",
    "optimizer.learning_rate": "lr learning_rate peak_lr max_lr base_lr init_lr",
    "optimizer.warmup_steps": "warmup num_warmup_steps lr_warmup_steps warmup_iters",
    "optimizer.schedule": "lr_scheduler lr_scheduler_type lr_schedule lr_decay_style scheduler",
    "optimizer.weight_decay": "wd weight_decay weight_decay_rate l2",
    "optimizer.b1": "beta1 beta_1 adam_beta1",
    "optimizer.b2": "beta2 beta_2 adam_beta2",
    "optimizer.eps": "epsilon adam_eps adam_epsilon",
    "optimizer.clip_norm": "max_grad_norm grad_clip clip_grad clip_grad_norm gradient_clip_val",
    "phases[0].batch_size": "batch_size train_batch_size global_batch_size bs bsz",
    "phases[0].micro_batches": "gradient_accumulation_steps grad_accum accumulate_grad_batches",
    "phases[0].steps": "steps max_steps num_steps total_steps num_train_steps train_steps",
    "phases[0].seq_length": "seq_length max_seq_length max_seq_len seq_len sequence_length "
    "max_length block_size",
    "phases[0].max_predictions": "max_predictions max_predictions_per_seq",
    "data.mask_rate": "mlm_probability mlm_prob masked_lm_prob mask_prob mask_probability",
    "data.store": "store dataset dataset_name dataset_path data_dir train_file input_file",
    "seed": "seed random_seed rng_seed data_seed",
    "model.hidden_size": "d_model hidden_dim n_embd embed_dim width",
    "model.num_hidden_layers": "num_layers n_layers n_layer encoder_layers depth",
    "model.num_attention_heads": "num_heads n_heads n_head",
    "model.intermediate_size": "d_ff ffn_dim ffn_hidden_size mlp_dim intermediate_dim",
    "model.hidden_dropout_prob": "dropout hidden_dropout dropout_rate",
    "model.attention_probs_dropout_prob": "attention_dropout attn_dropout",
    "model.max_position_embeddings": "max_positions max_position n_positions",
    "model.hidden_act": "activation activation_function act",
    "compute.dtype": "dtype torch_dtype compute_dtype precision",
    "compute.remat": "remat gradient_checkpointing activation_checkpointing recompute",
    "checkpoint.every_steps": "save_steps save_every save_interval checkpoint_every "
    "save_checkpoints_steps",
    "checkpoint.keep": "save_total_limit max_to_keep keep_checkpoint_max",
    "evaluation.every_steps": "eval_steps eval_every eval_interval",
    "log_every_steps": "logging_steps log_every log_interval log_steps",
    "objectives": "objective loss losses",
    "init": "init_checkpoint model_name_or_path pretrained_model_name_or_path init_from",
}
# What to do about names that have no key with the same value.
_ADVICE: Final = {
    "epochs num_epochs max_epochs num_train_epochs train_epochs": "set {}phases[0].steps: an epoch "
    "has (rows per epoch) / batch_size steps; `bert-jax pretrain` prints the rows per epoch",
    "per_device_train_batch_size per_device_batch_size per_gpu_train_batch_size device_batch_size "
    "micro_batch_size": "set {}phases[0].batch_size, the rows of all devices together",
    "per_device_eval_batch_size eval_batch_size": "evaluation uses {}phases[0].batch_size",
    "warmup_ratio warmup_proportion": "set {}optimizer.warmup_steps, a number of steps",
    "bf16 bfloat16": "set {}compute.dtype=bfloat16",
    "fp16 float16 half amp mixed_precision": "set {}compute.dtype=bfloat16; float16 does not exist",
    "resume resume_from_checkpoint auto_resume": "type the same command again: it resumes",
    "base extends defaults inherit": "values change those of `base`; a .py file can start from "
    "another config",
    "output_dir save_dir logdir log_dir checkpoint_dir": "give --workdir=…",
}
_KEY_OF: Final = {name: key for key, names in _OTHER_NAMES.items() for name in names.split()}
_ADVICE_OF: Final = {name: text for names, text in _ADVICE.items() for name in names.split()}


def translation(name: str, prefix: str = "") -> str:
    """Returns the end of an error message about a name of other programs; "" for other names.

    prefix: of the suggested key.
    """
    leaf = name.rpartition(".")[2].lower().replace("-", "_")
    if advice := _ADVICE_OF.get(leaf):
        return f"; {advice.format(prefix)}"
    key = _KEY_OF.get(leaf)
    return f"; did you mean {prefix}{key}?" if key and key != name else ""


def key_hint(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about a name that is not one of the flattened keys: the
    key that was probably meant, or the keys of its section."""
    keys = list(known)
    if hint := translation(name):
        return hint
    if near := nearest_name(name, keys):
        return f"; did you mean {near}?"
    section = name.rpartition(".")[0]
    within = [key for key in keys if key.startswith(f"{section}.")] if section else keys
    first = len(section) + 1 if within and section else 0
    names = sorted({key[first:].partition(".")[0] for key in within or keys})
    return f"; valid: {', '.join(names)}"
