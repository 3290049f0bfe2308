"""The tokenizer of a task: that of the model to start from."""

from bert_jax.config.schema import Config
from bert_jax.convert.model_folders import load_tokenizer, tokenizer_of_model
from bert_jax.convert.sources import read_trained_tokenizer
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.training import claim
from bert_jax.training.initial_checks import check_source
from bert_jax.workdir.layout import Workdir, split_step


def find_tokenizer(config: Config, workdir: Workdir, *, in_words: bool) -> Tokenizer:
    """Returns the tokenizer of the model that `config.init` names, or `config.task.tokenizer`, as
    it reads the texts of the task.

    A run that resumes has it in its workdir and needs the model no more.

    Args:
        in_words: see `Tokenizer.for_task`.

    Raises:
        UserError: there is none, it cannot be read, or it reads special tokens in another way than
            `config.task.split_special_tokens`.
    """
    found, split = _find(config, workdir), config.task.split_special_tokens
    if found.split_special_tokens and not split:
        raise UserError(
            f"config.init={config.init}: its tokenizer_config.json has split_special_tokens, the "
            "task has not; give --config.task.split_special_tokens=True"
        )
    return found.for_task(in_words=in_words, split_special_tokens=split)


def _find(config: Config, workdir: Workdir) -> Tokenizer:
    """Returns the tokenizer that the model, the run or the user has."""
    recorded, started = claim.recorded_run(workdir, config)
    if recorded and started and workdir.tokenizer.exists():
        return read_trained_tokenizer(workdir.tokenizer, recorded["data"]["tokenizer"])
    if not config.init:
        return load_tokenizer(config.task.tokenizer)
    path, _ = split_step(config.init)
    check_source(config.init)
    run = Workdir.open(path)
    found = Tokenizer.load(str(run.tokenizer)) if run.is_run() else tokenizer_of_model(path)
    given = config.task.tokenizer
    if given and load_tokenizer(given).digest != found.digest:
        raise UserError(
            f"config.task.tokenizer={given} is not the tokenizer of config.init={config.init}, "
            "which the model needs; leave it out"
        )
    return found
