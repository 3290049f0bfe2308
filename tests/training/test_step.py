"""The step gives the same numbers however it is split: devices, meshes, micro-batches, packing.

One device with one example a row is the reference. Rounding differs between the programs compared,
so losses agree to 1e-6 relative, and parameters after three steps to 1e-6 of the length of their
update: |p - q| / |p - p0| over all parameters together, the norm that gradients are clipped by.
"""

import functools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import shape_search
from handmade import batch
from jax.experimental.compilation_cache import compilation_cache
from nightly import others_nightly
from small_step import ALL_AT_ONCE, CORPUS, DATA, EXAMPLES, PACKED, mesh_of, place, rows_of, small
from split_steps import Trained, assert_same, train

from bert_jax.config.schema import Config
from bert_jax.objectives.known_objectives import chosen
from bert_jax.ops.attention import dispatch, pallas
from bert_jax.parallel import partition
from bert_jax.training.step import make_step_functions

GOLDEN = Path(__file__).parents[1] / "goldens" / "losses.json"
REGENERATE = "PYTHONPATH=tests/support python tests/training/test_step.py"


@functools.cache
def reference(learned: str = "mlm+nsp", optimizer: str = "adamw") -> Trained:
    """One device, one example a row, the whole batch at once."""
    return train(small(learned, optimizer={"name": optimizer}))


def slow(case: Sequence[Any], name: str | None = None) -> Any:
    return pytest.param(*case, id=name, marks=pytest.mark.slow)


def nightly(case: Sequence[Any], name: str | None = None) -> Any:
    """What others like it show already."""
    return pytest.param(*case, id=name, marks=pytest.mark.nightly)


MESHES = [  # id, mesh, shape of a device's part of the kernel of queries, keys and values
    ("data8", {"data": 8}, (2, 32, 3, 8, 4)),
    ("fsdp8", {"data": 1, "fsdp": 8}, (2, 4, 3, 8, 4)),
    ("tensor8", {"data": 1, "tensor": 8}, (2, 32, 3, 1, 4)),
    ("2x2x2", {"data": 2, "fsdp": 2, "tensor": 2}, (2, 16, 3, 4, 4)),
    ("two-slices", {"slice": 2, "data": 2, "fsdp": 2}, (2, 16, 3, 8, 4)),
]
MORE_MESHES = [
    ("4x2x1", {"data": 4, "fsdp": 2}, (2, 16, 3, 8, 4)),
    ("1x1x2", {"data": 1, "tensor": 2}, (2, 32, 3, 4, 4)),
    ("1x2x4", {"data": 1, "fsdp": 2, "tensor": 4}, (2, 16, 3, 2, 4)),
]


@pytest.fixture(autouse=True)
def _nothing_is_gathered_by_force(capfd: pytest.CaptureFixture) -> Iterator[None]:
    """XLA logs it where it has to make an array whole on every device to split it another way."""
    yield
    assert "rematerialization" not in capfd.readouterr().err


def test_everything_at_once_gives_the_same_numbers() -> None:
    """The tests marked slow and nightly take these apart."""
    one = reference("mlm+nsp+sbo")
    assert_same(one, train(small("mlm+nsp+sbo", **ALL_AT_ONCE), one.before))


FORMS = {
    "rotary-pre": {"position": "rotary", "norm_position": "pre"},
    "modern": {
        **{"position": "rotary", "norm_position": "pre", "norm_bias": False, "linear_bias": False},
        **{"gated_mlp": True, "first_attention_norm": False, "local_attention": 6},
        **{"global_attn_every_n_layers": 2, "num_hidden_layers": 4},
    },
    "shared": {"num_hidden_groups": 1, "embedding_size": 16, "num_hidden_layers": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", others_nightly(FORMS, keep=["modern"]))
def test_every_form_of_layers_gives_the_same_numbers_everywhere(form: str) -> None:
    """Packed rows and micro-batches, recomputed layers, sharded heads and updates, all at once."""
    model = FORMS[form]
    one = train(small(model=model))
    assert_same(one, train(small(model=model, **ALL_AT_ONCE), one.before))


@pytest.mark.slow
def test_a_split_optimizer_sums_and_splits_gradients_at_once() -> None:
    """And nothing in the step of a device has the size of the global batch."""
    split = {"unroll_layers": 0, "shard_optimizer": True}
    other = train(small(mesh={"data": 2}, compute=split), reference().before)
    assert_same(reference(), other)
    made = re.findall(r"= (\S+)\[([\d,]+)\]\S* ([a-z-]+)\(", other.text)
    shapes = {kind: {shape for _, shape, k in made if k == kind} for *_, kind in made}
    assert "32,32" in shapes["reduce-scatter"], "of the word table's gradient, a half"
    assert "64,32" in shapes["all-gather"]
    assert "all-reduce" not in shapes or not shapes["all-reduce"] & {"64,32", "32,64"}
    of_batch = [shape for _, shape, _ in made if shape.split(",")[0] == str(EXAMPLES)]
    assert not of_batch


def test_evaluation_leaves_rows_where_they_are() -> None:
    """Where the word table is kept split along its width, too: nothing is as large as the batch."""
    split = {"unroll_layers": 0, "shard_optimizer": True}
    table = {"vocab_size": 4001, "pad_vocab_to_multiple_of": 1}
    config = small(mesh={"data": 8}, model=table, compute=split)
    arrays, mesh = rows_of(config), mesh_of(config)
    with jax.set_mesh(mesh):
        program = make_step_functions(config, mesh, CORPUS)
        text = program.compile_evaluate(arrays, EXAMPLES).as_text()
    assert program.abstract["params"]["encoder"]["embeddings"]["word"].sharding.spec[1] == "data"
    assert " all-gather(" in text
    assert not shape_search.with_size(text, EXAMPLES)
    of_logits = [
        one for one, _ in shape_search.with_size(text, 4001) if one.opcode == "exponential"
    ]
    assert len(of_logits) == 1, "the losses of rows and of the batch are computed once"


@pytest.mark.parametrize(
    ("mesh", "shard"),
    [slow(case, name) for name, *case in MESHES]
    + [nightly(case, name) for name, *case in MORE_MESHES],
)
def test_every_mesh_gives_the_same_numbers(mesh: dict, shard: tuple) -> None:
    other = train(small(mesh=mesh), reference().before)
    kernel = other.after["params"]["encoder"]["layers"]["attention"]["qkv"]["kernel"]
    assert kernel.addressable_shards[0].data.shape == shard
    assert_same(reference(), other)


@pytest.mark.parametrize(
    ("parts", "devices"), [nightly((2, 1)), slow((4, 1)), slow((2, 8)), nightly((4, 4))]
)
def test_micro_batches_add_up_without_moving_rows(parts: int, devices: int) -> None:
    other = train(small(phase={"micro_batches": parts}, mesh={"data": devices}), reference().before)
    assert_same(reference(), other)
    moved = [name for name in ("all-to-all", "all-gather", "permute") if f" {name}" in other.text]
    assert not moved, f"micro-batches are cut with {moved}"


@pytest.mark.parametrize(
    "learned",
    [slow((name,)) if name in ("mlm+sop", "mlm+sbo") else nightly((name,)) for name in DATA],
)
def test_packed_and_padded_rows_give_the_same_numbers(learned: str) -> None:
    one, config = reference(learned), small(learned, phase=PACKED)
    assert rows_of(config)["input_ids"].shape == (16, 32)
    assert rows_of(small(learned))["input_ids"].shape == (48, 16)
    assert_same(one, train(config, one.before))


@pytest.mark.parametrize(
    "compute",
    [
        nightly(({"unroll_layers": 0},), "0"),
        nightly(({"remat": "full"},), "full"),
        nightly(({"remat": "dots_saveable"},), "dots_saveable"),
        slow(({"remat": "dots_with_no_batch_dims_saveable"},), "dots_with_no_batch_dims_saveable"),
        slow(({"remat": "full", "unroll_layers": 0},), "full-0"),
    ],
)
def test_how_layers_are_compiled_changes_no_numbers(compute: dict) -> None:
    assert_same(reference(), train(small(compute=compute), reference().before))


# Rows of training and of evaluation that suit a kernel.
WIDE = {
    "batch_size": 8,
    "examples_per_row": 6,
    "row_length": 128,
    "seq_length": 128,
    "max_predictions": 18,  # a row
}
FITTING = {"num_attention_heads": 4, "max_position_embeddings": 128}


@functools.cache
def reference_of_kernels() -> Trained:
    """As `reference`, with heads and positions that suit a kernel."""
    return train(small(model=FITTING))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "phase", "compute"),
    [
        ({}, {}, {}),
        ({"data": 1, "tensor": 4}, {}, {"unroll_layers": 0}),
        ({"slice": 2, "data": 2, "fsdp": 2}, {}, {"remat": "dots_saveable"}),
        (
            {"data": 2, "fsdp": 2, "tensor": 2},
            {"micro_batches": 2},
            {"unroll_layers": 0, "remat": "full", "shard_optimizer": True},
        ),
    ],
    ids=["one-device", "tensor", "two-slices", "everything"],
)
def test_the_tpu_kernel_gives_the_same_numbers(
    mesh: dict, phase: dict, compute: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Pallas' interpreter; with padding and six examples in a row."""
    interpreted = functools.partial(pallas.attend, interpret=True)
    monkeypatch.setitem(dispatch._KERNELS, "pallas", interpreted)
    monkeypatch.setitem(dispatch._RUNS, "pallas", lambda device: True)
    one = reference_of_kernels()
    changes = {"mesh": mesh, "phase": WIDE | phase, "model": FITTING}
    config = small(compute=compute | {"attention": "pallas"}, **changes)
    assert_same(one, train(config, one.before))


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        nightly(("adamw", {"data": 8}), "adamw-data8"),
        slow(("adamw", {"data": 4, "fsdp": 2}), "adamw-4x2"),
        nightly(("lamb", {"data": 8}), "lamb-data8"),
        nightly(("lamb", {"data": 4, "fsdp": 2}), "lamb-4x2"),
        nightly(("lamb_all", {"data": 8}), "lamb_all-data8"),
        nightly(("lamb_all", {"data": 4, "fsdp": 2}), "lamb_all-4x2"),
        slow(("stable_adamw", {"data": 4, "fsdp": 2}), "stable_adamw-4x2"),
    ],
)
def test_a_split_optimizer_gives_the_same_numbers(name: str, mesh: dict) -> None:
    one = reference(optimizer=name)
    whole, split = (
        train(
            small(optimizer={"name": name}, mesh=mesh, compute={"shard_optimizer": shard}),
            one.before,
        )
        for shard in (False, True)
    )
    assert_same(one, whole)
    assert_same(one, split)
    assert whole.text != split.text
    for part in ("opt", "params"):
        held = [sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(t.after[part]))
                for t in (whole, split)]  # fmt: skip
        assert held[1] < held[0] / mesh["data"] * 1.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=["data8", "2x2x2"]
)
def test_dropout_is_the_same_on_every_mesh(mesh: dict) -> None:
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    one, other = (train(small(model=rates, mesh=m), reference().before) for m in ({}, mesh))
    assert abs(one.losses[0] / reference().losses[0] - 1) > 1e-4, "nothing was dropped"
    assert_same(one, other)


@pytest.mark.slow
def test_micro_batches_drop_different_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal rows one by one: were the masks equal too, two would give the loss of four."""
    model = {"hidden_dropout_prob": 0.3, "num_hidden_layers": 1}
    monkeypatch.setattr("split_steps.rows_of", equal_rows)
    two, four = (
        train(small(model=model, phase={"batch_size": n, "micro_batches": n}), steps=1).losses
        for n in (2, 4)
    )
    assert abs(four[0] / two[0] - 1) > 1e-3


def equal_rows(config: Config) -> dict[str, np.ndarray]:
    phase = config.phases[0]
    rows = [[0]] * phase.batch_size
    return batch(chosen(config.data), rows, length=phase.row_tokens, slots=phase.row_predictions)


@pytest.mark.slow
@pytest.mark.parametrize("initializer", ["published", "positional_heads"])
def test_initial_parameters_are_the_same_on_every_mesh(initializer: str) -> None:
    def start(**mesh: int) -> Any:
        config = small(mesh=mesh, model={"initializer": initializer})
        return make_step_functions(config, mesh_of(config), CORPUS).init()

    state = start(data=2, fsdp=2, tensor=2)
    assert len(state["params"]["encoder"]["embeddings"]["word"].sharding.device_set) == 8
    jax.tree.map(np.testing.assert_array_equal, state, start(data=1))


@pytest.mark.slow
def test_a_phase_compiles_once() -> None:
    config = small(mesh={"data": 4}, compute={"shard_optimizer": True})
    mesh = mesh_of(config)
    with jax.set_mesh(mesh):
        program = make_step_functions(config, mesh, CORPUS)
        state, placed = program.init(), place(program, rows_of(config))
        for parts in (1, 2):
            for _ in range(3):
                state, _ = program.train(state, placed, micro_batches=parts)
            assert program.train._cache_size() == parts
            state = program.start_phase(state)


def test_a_later_phase_starts_as_configured() -> None:
    config = small(
        mesh={"data": 4},
        compute={"shard_optimizer": True},
        optimizer={"phase_moments": "reset", "phase_count": "carry"},
    )
    mesh = mesh_of(config)
    program = make_step_functions(config, mesh, CORPUS)
    state = jax.tree.map(
        lambda a: jax.device_put(np.ones(a.shape, a.dtype), a.sharding), program.abstract
    )
    after = program.start_phase(state)
    jax.tree.map(
        lambda x, a: x.sharding == a.sharding or pytest.fail("moved"), after, program.abstract
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(after):
        name = jax.tree_util.keystr(path)
        assert np.all(np.asarray(leaf) == (0 if ".mu" in name or ".nu" in name else 1)), name


@pytest.fixture
def without_compile_cache() -> Iterator[None]:
    """XLA logs only what it compiles, and the cache would have what an earlier run compiled."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.mark.slow
@pytest.mark.usefixtures("without_compile_cache")
def test_a_split_width_of_the_word_table_would_be_gathered(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """So the check above that nothing is can fail."""
    monkeypatch.setitem(partition.AXES, "table", "fsdp")
    train(small(mesh={"data": 2, "fsdp": 2, "tensor": 2}), steps=0)
    assert "rematerialization" in capfd.readouterr().err


def losses(learned: str) -> list[float]:
    """The loss after one update and after three."""
    of_steps = train(small(learned), steps=4).losses
    return [of_steps[1], of_steps[3]]


@pytest.mark.parametrize(
    "learned",
    [
        name if name == "mlm+nsp+sbo" else pytest.param(name, marks=pytest.mark.slow)
        for name in DATA
    ],
)
def test_losses_are_what_they_were(learned: str) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert set(golden) == set(DATA)
    np.testing.assert_allclose(
        losses(learned), golden[learned], rtol=1e-5,
        err_msg=f"training gives other numbers; if that is meant: {REGENERATE}, commit {GOLDEN}",
    )  # fmt: skip


if __name__ == "__main__":
    import conftest  # noqa: F401  # the devices of the tests

    values = {learned: losses(learned) for learned in DATA}
    GOLDEN.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
