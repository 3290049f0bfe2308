"""Refuses settings that do nothing beside the others of a config."""

from collections.abc import Collection

from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.errors import UserError

_OF_GENERATOR = ("rtd_weight", "model.generator.")  # begin its keys
_WINDOW, _EVERY = "model.local_attention", "model.global_attn_every_n_layers"
_OF_WINDOWS = ("model.local_rope_theta", _EVERY)


def check_effect(config: Config, unset: Collection[str]) -> None:
    """Raises UserError for settings of a generator or of windows that a run does not have.
    Configurations that runs of earlier versions have recorded may have them.

    unset: names of the architecture that the file leaves to the model to start from.
    """
    known, usual, model = flatten(to_dict(config)), flatten(to_dict(Config())), config.model
    given = [key for key in known if key.removeprefix("model.") not in unset]
    for has, keys, needed in (
        (config.data.replaced_tokens, _OF_GENERATOR, "data.replaced_tokens; set that to True"),
        (model.local_attention, _OF_WINDOWS, f"{_WINDOW}; set that to the tokens of a window"),
    ):
        changed = [key for key in given if key.startswith(keys) and known[key] != usual[key]]
        if changed and not has:
            defaults = " ".join(f"--config.{key}={usual[key]}" for key in changed)
            raise UserError(
                f"config.{changed[0]}={known[changed[0]]} has no effect without config.{needed}, "
                f"or {defaults}"
            )
    if model.local_attention and model.global_attn_every_n_layers == 1:
        raise UserError(
            f"config.{_WINDOW}={model.local_attention} has no effect with config.{_EVERY}=1, "
            f"by which all layers attend to all tokens; raise that, or --config.{_WINDOW}=0"
        )
