"""Shipped configs against their golden texts; keys that are unknown or of a wrong type."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import refusals
from absl import flags
from ml_collections import ConfigDict

from bert_jax import cli
from bert_jax.config.config_files import define_config, load, load_values, read_config, with_paths
from bert_jax.config.schema import Config
from bert_jax.config.serialization import completed, flatten, from_dict, plain, to_dict
from bert_jax.config.shipped import shipped
from bert_jax.configs import base
from bert_jax.errors import UserError
from bert_jax.exit_codes import FAILED

GOLDENS = Path(__file__).parents[1] / "goldens" / "configs"
REGENERATE = "PYTHONPATH=tests/support python tests/config/test_config.py"


def golden_text(name: str) -> str:
    """`base`, one line per value; of another shipped config, the lines in which it differs."""
    values, base = (flatten(to_dict(load(one))) for one in (name, "base"))
    if name != "base":
        missing = [f"{key} = -\n" for key in base if key not in values]
        values = {k: v for k, v in values.items() if k not in base or base[k] != v}
        return "".join(f"{key} = {json.dumps(v)}\n" for key, v in values.items()) + "".join(missing)
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_config_is_what_it_was(name: str) -> None:
    path = GOLDENS / f"{name}.txt"
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    assert golden_text(name) == golden, f"if the change is meant: {REGENERATE}, and commit {path}"


def test_no_golden_outlives_its_config() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == set(shipped())


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_config_says_how_to_run_it(name: str) -> None:
    text = shipped()[name].read_text(encoding="utf-8")
    verb = "finetune" if name.startswith(("glue", "sentences")) else "pretrain"
    command = "bert-jax demo" if name == "demo" else f"bert-jax {verb} --config={name} "
    assert command in text.split('"""')[1]


@pytest.mark.parametrize("name", shipped())
def test_a_recipe_lists_its_differences_from_its_source(name: str) -> None:
    if load(name).compute.dtype == "float32":  # the small configs, which reproduce no publication
        return
    text = shipped()[name].read_text(encoding="utf-8").split('"""')[1]
    assert "bfloat16" in text.partition("Differences from")[2].partition("\n\n")[0]


@pytest.mark.parametrize(
    "name", [x for x in shipped() if x.startswith(("modernbert", "ettin", "mmbert"))]
)
def test_the_long_phases_of_modernberts_have_a_higher_global_theta(name: str) -> None:
    config = load(name, {"model.vocab_size": 1000})
    thetas = {(p.seq_length, p.model(config.model).global_rope_theta) for p in config.phases}
    assert thetas == {(1024, 10_000.0), (8192, 160_000.0)}


def test_a_batch_ramp_doubles_the_batch_and_keeps_the_tokens() -> None:
    config = base.get_config()
    config.phases[0].steps, config.phases[0].micro_batches = 1001, 4
    config.phases = base.batch_ramp(config.phases[0], 32, share=0.3)
    phases = load_values(plain(config)).phases
    assert [(p.batch_size, p.steps) for p in phases] == [
        (32, 800),
        (64, 400),
        (128, 200),
        (256, 701),
    ]
    assert sum(p.batch_size * p.steps for p in phases) == 256 * 1001
    assert [p.micro_batches for p in phases] == [1, 1, 2, 4]
    (only,) = base.batch_ramp(config.phases[3], 256)
    assert only == config.phases[3]
    config.phases[3].batch_size, config.phases[3].micro_batches = 40, 20
    micro = [phase.micro_batches for phase in base.batch_ramp(config.phases[3], 5)]
    assert micro == [1, 5, 10, 20], "a micro-batch has whole rows"


@pytest.mark.parametrize(
    ("first", "steps", "message"),
    [
        (48, 100, "batch_size=256 is not 48 rows times a power of two"),
        (0, 100, "batch_size=256 is not 0 rows times a power of two"),
        (512, 100, "batch_size=256 is not 512 rows times a power of two"),
        (32, 3, "3 smaller batches leave none of the 3 steps"),
    ],
)
def test_a_batch_ramp_that_does_not_fit_is_one_line(first: int, steps: int, message: str) -> None:
    config = base.get_config()
    config.phases[0].steps = steps
    with pytest.raises(UserError, match=f"^batch_ramp: {message}") as error:
        base.batch_ramp(config.phases[0], first)
    assert "\n" not in str(error.value)


def test_a_config_survives_its_json() -> None:
    config = load("wiki_books_small")
    assert from_dict(json.loads(json.dumps(to_dict(config))), Config) == config


def changed(**values: object) -> dict:
    """The tiny config as nested dicts, with some values replaced or, if None, removed."""
    config = to_dict(load("tiny"))
    for path, value in values.items():
        *parents, key = path.split("__")
        place = config
        for parent in parents:
            place = place[int(parent)] if parent.isdigit() else place[parent]
        if value is None:
            del place[key]
        else:
            place[key] = value
    return config


def refusal(**values: object) -> str:
    """What is said of the tiny config with these values."""
    with pytest.raises(UserError) as error:
        from_dict(changed(**values), Config)
    return str(error.value)


def test_a_wrong_value_is_one_line() -> None:
    def answer(values: str) -> str:
        return refusal(**{k.replace(".", "__"): v for k, v in json.loads(values).items()})

    refusals.check("values", answer)


def test_a_number_of_400_digits_is_shown_short() -> None:
    shown = f"1{'0' * 59}…{'0' * 15}"
    steps, rate = refusal(phases__0__steps=10**400), refusal(optimizer__learning_rate=10**400)
    assert steps == f"config.phases[0].steps={shown} should be from 1 to 2147483647"
    assert rate == f"config.optimizer.learning_rate={shown} should be float"


def test_base_is_the_defaults() -> None:
    assert load("base") == Config()


@pytest.mark.parametrize("missing", ["data__separators", "optimizer", "phases__0__row_length"])
def test_a_missing_key_takes_its_default(missing: str) -> None:
    """A run that began before a setting existed is resumed with the default."""
    values = changed(**{missing: None})
    full = to_dict(from_dict(values, Config))
    assert completed(values, Config) == full
    of_section = flatten(to_dict(Config()))
    taken = flatten(full).items() - flatten(values).items()
    assert taken
    assert taken <= of_section.items()


def test_all_phases_together_have_a_limit_of_steps() -> None:
    (phase,) = changed()["phases"]
    phases = [{**phase, "steps": 2**31 - 1}, {**phase, "steps": 1}]
    with pytest.raises(UserError, match="2147483648 steps in total; the maximum is 2147483647"):
        from_dict(changed(phases=phases), Config)


@pytest.mark.parametrize("values", [None, 1, "abc", [1]])
def test_a_config_that_is_no_keys_is_one_line(values: object) -> None:
    with pytest.raises(UserError, match=r"config=.* should be keys"):
        from_dict(values, Config)  # type: ignore[arg-type]


def test_a_long_value_is_shown_short() -> None:
    assert len(refusal(model="x" * 10_000)) < 200


def test_whole_numbers_pass_for_floats() -> None:
    config = from_dict(changed(optimizer__clip_norm=1), Config)
    assert isinstance(config, Config)
    assert config.optimizer.clip_norm == 1.0


def write(path: Path, body: str) -> Path:
    """A user's config file: the tiny config with a change."""
    path.write_text(
        "from configs import tiny\n\ndef get_config():\n"
        f"    config = tiny.get_config()\n    {body}\n    return config\n"
    )
    return path


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("config.model.dropuot = 0.1", "unknown key config.model.dropuot"),
        ("config.seed = None", "config.seed=None should be int"),
        ("config.phases[0].batchsize = 8", "config.phases[0].batchsize; did you mean batch_size?"),
        ("config.log_every_steps = 'ten'", "get_config() failed (TypeError: "),
        ("return config.to_dict()", "get_config() returns dict; return a ConfigDict"),
        ("return", "get_config() returns NoneType; return a ConfigDict"),
    ],
)
def test_a_wrong_config_file_is_one_line(
    body: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = write(tmp_path / "mine.py", body)
    assert cli.main(["pretrain", f"--config={path}", f"--workdir={tmp_path}/run"]) == FAILED
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer.learning_rate": math.inf},
            "=inf should be 0 or more, and finite",
        ),
        ({"optimizer.eps": math.nan}, "config.optimizer.eps=nan should be above 0, and finite"),
        ({"optimizer.learning_rate": -1.0}, "learning_rate=-1.0 should be 0 or more"),
        ({"optimizer.b1": math.inf}, "b1=inf should be from 0 to 1, but not 1, and finite"),
        ({"model.hidden_act": "swiglu"}, "hidden_act='swiglu'; valid: gelu, gelu_tanh"),
        ({"model.hidden_act": "swish"}, "hidden_act='swish'; valid: gelu, gelu_tanh"),
        (
            {"model.generator.hidden_size": 2**17 + 1},
            "hidden_size=131073 should be from 0 to 131072",
        ),
        ({"model.generator.num_hidden_layers": 1001}, "=1001 should be from 0 to 1000"),
        ({"model.generator.num_attention_heads": 4097}, "=4097 should be from 0 to 4096"),
        ({"model.generator.intermediate_size": 2**31}, "=2147483648 should be from 0 to 131072"),
        (
            {"model.generator.hidden_size": 64, "rtd_weight": 3.0},
            "config.model.generator.hidden_size=64 has no effect without config.data."
            "replaced_tokens; set that to True, or --config.model.generator.hidden_size=0 "
            "--config.rtd_weight=50.0",
        ),
        (
            {"model.generator.hidden_size": 51},  # not a multiple of the heads
            "hidden_size=51 has no effect without config.data.replaced_tokens",
        ),
        (
            {"model.generator.embedding_sharing": "gradient_disentangled"},
            "has no effect without config.data.replaced_tokens",
        ),
        (
            {"model.word_initializer": "cooccurrence"},
            "config.model.word_initializer=cooccurrence has no effect with "
            'config.model.initializer="published"; set that to random',
        ),
        ({"model.near_identity.head": True}, "near_identity.head=True has no effect with"),
        (
            {"model.position": "rotary", "model.local_rope_theta": 5.0},
            "config.model.local_rope_theta=5.0 has no effect without config.model.local_attention; "
            "set that to the tokens of a window, or --config.model.local_rope_theta=10000.0",
        ),
        (
            {"model.global_attn_every_n_layers": 5},
            "config.model.global_attn_every_n_layers=5 has no effect without config.model.local_",
        ),
        (
            {"model.local_attention": 8, "model.global_attn_every_n_layers": 1},
            "config.model.local_attention=8 has no effect with config.model."
            "global_attn_every_n_layers=1, by which all layers attend to all tokens; raise that, "
            "or --config.model.local_attention=0",
        ),
        (
            {"model.positional_heads.layers": 2},
            "config.model.positional_heads.layers=2 has no effect with config.model."
            'initializer="published"; set that to positional_heads',
        ),
        (
            {"model.cooccurrence.window": 2},
            "config.model.cooccurrence.window=2 has no effect with config.model."
            'word_initializer="random"; set that to cooccurrence',
        ),
    ],
)
def test_values_without_a_meaning_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load("tiny", changes)


def test_a_start_that_is_set_back_is_refused_in_python_too() -> None:
    config = load("demo")
    published = config.replace("model.initializer", "published")  # says nothing of the others
    assert published.model.word_initializer == "random"
    with pytest.raises(UserError, match=r"word_initializer=cooccurrence has no effect with"):
        published.replace("model.word_initializer", "cooccurrence")
    both = {"model.initializer": "published", "model.word_initializer": "cooccurrence"}
    assert config.replace(both).model.word_initializer == "random"
    again = {"model.initializer": "random", "model.word_initializer": "cooccurrence"}
    assert published.replace(again).model.word_initializer == "cooccurrence"


def test_a_generator_without_effect_is_read_from_a_record_and_may_be_switched_off() -> None:
    config = load("electra_small")
    plain = config.replace("data.replaced_tokens", False)
    assert plain.model.generator.hidden_size == 64
    assert from_dict(to_dict(plain), Config) == plain


def test_windows_without_effect_are_read_from_a_record_and_may_be_switched_off(
    tmp_path: Path,
) -> None:
    config = load("mmbert_small")
    plain = config.replace("model.local_attention", 0)
    assert plain.model.local_rope_theta == 160_000.0
    assert from_dict(to_dict(plain), Config) == plain
    follows = {"model.local_rope_theta": None, "model.local_attention": 0, "init": str(tmp_path)}
    found = load("mmbert_small", follows, model_of=lambda source: plain.model)  # a model's value
    assert found.model.local_rope_theta == 160_000.0


def typed_at(*typed: str) -> Config:
    """The configuration of words on a command line."""
    words = with_paths([*typed])
    values = flags.FlagValues()
    define_config(values, words)
    values(["pretrain", *words])
    assert isinstance(values["config"].value, ConfigDict)
    return read_config(values)


def test_overrides_reach_the_config() -> None:
    config = typed_at("--config=tiny", "--config.phases[0].steps=7", "--config.optimizer.eps=1e-8")
    assert config.phases[0].steps == 7
    assert config.optimizer.eps == 1e-8


UNSET = {
    "mask_rate": 0.15,
    "mask_share": 0.7,
    "source_weights": "books=2",
    "language_smoothing": 0.5,
}


@pytest.mark.parametrize("name", [*shipped(), ""])
def test_values_of_every_phase_can_be_set_on_the_command_line(name: str, tmp_path: Path) -> None:
    """Also where the file copies phases, or sets a value to None."""
    config = name
    if not name:
        config = str(tmp_path / "mine.py")
        body = "config.phases = [config.phases[0].copy_and_resolve_references()]"
        write(tmp_path / "mine.py", f"{body}\n    config.phases[0].mask_rate = None")
    last = len(load(config).phases) - 1
    given = [f"--config.phases[{last}].{key}={value}" for key, value in UNSET.items()]
    phase = typed_at(f"--config={config}", *given).phases[last]
    assert {key: getattr(phase, key) for key in UNSET} == UNSET


def test_the_name_may_follow_the_flag() -> None:
    assert with_paths(["--config", "tiny"]) == with_paths(["--config=tiny"])


if __name__ == "__main__":
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for old in GOLDENS.iterdir():
        old.unlink()
    for name in shipped():
        (GOLDENS / f"{name}.txt").write_text(golden_text(name), encoding="utf-8")
