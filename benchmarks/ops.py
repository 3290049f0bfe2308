"""Compares each gradient written by hand in bert_jax/ops with JAX's autodiff of the same function.

    python benchmarks/ops.py --compile=                 # bytes saved for the backward pass: seconds
    make .venv/libtpu                                   # the TPU compiler; no TPU is needed
    python benchmarks/ops.py --layers=2                 # and steps on v5e: minutes for each
    python benchmarks/ops.py --unroll=1 --compile=gelu  # with a loop over all layers

First, what each operation saves for its backward pass, in MiB, at the shapes of base on 64 rows of
128 tokens. Then the training step of `bert-jax pretrain` on that many rows per chip of v5e, four
chips, bfloat16, dropout, with one operation at a time differentiated by autodiff. Cycles are the
compiler's estimate plus the roofline time of what it has no estimate for; temporaries are one
chip's memory in addition to parameters, moments and batch. No step runs.
"""

import dataclasses
import importlib
import inspect
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import harness
import tpu_compile

B, S, H, A, D, V, P = 64, 128, 768, 12, 64, 30528, 20
HEADS = ("bfloat16", (B, A, S, D))
# Name: module, custom_vjp function, its arrays in base, its other arguments.
OPS = {
    "attention": (
        "attention.xla", "attend_heads", [HEADS, HEADS, HEADS, ("int32", (B, S)), ("uint32", ())],
        [0.1, None],
    ),
    "layer_norm": (
        "layer_norm", "layer_norm",
        [("bfloat16", (B, S, H)), ("float32", (H,)), ("float32", (H,))], [1e-12],
    ),
    "gelu": ("gelu", "gelu", [("bfloat16", (B, S, 4 * H))], [False]),
    "dropout": ("dropout", "_dropout", [("bfloat16", (B, S, H)), ("uint32", ())], [0.1]),
    "split_qkv": (
        "split_qkv", "_split_qkv", [("bfloat16", (B, S, 3, A, D)), ("bfloat16", (3, A, D))], []
    ),
    "cross_entropy": (
        "cross_entropy", "cross_entropy", [("float32", (B, P, V)), ("int32", (B, P))], []
    ),
    "add_bias": ("sums", "add_bias", [("float32", (B, P, V)), ("float32", (V,))], []),
    "embedding_lookup": (
        "embedding_lookup", "lookup", [("bfloat16", (V, H)), ("int32", (B, S))], []
    ),
}  # fmt: skip


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--compile", default=",".join(OPS), help="operations; empty: no step")
    parser.add_argument("--layers", type=int, help="number of layers, to shorten the model")
    parser.add_argument("--unroll", type=int, default=0, help="compute.unroll_layers; 0 = all")
    options = parser.parse_args()
    names = harness.some_of("compile", options.compile, OPS, least=0)
    if names:
        harness.find_libtpu()
        from bert_jax.aot import topology

        topology.prepare()  # before anything imports JAX
    print(f"{'saved, MiB':<18}{'by hand':>9}{'autodiff':>10}")
    for name in OPS:
        custom = operation(name)
        by_hand, automatic = (saved_mib(f, name) for f in (custom, inspect.unwrap(custom)))
        harness.record(saved_mib=name, by_hand=by_hand, autodiff=automatic)
        print(f"{name:<18}{by_hand:>9.1f}{automatic:>10.1f}")
    if names:
        compile_steps(names, options.layers, options.unroll)


def operation(name: str):
    module, function, *_ = OPS[name]
    return getattr(importlib.import_module(f"bert_jax.ops.{module}"), function)


def saved_mib(function, name: str) -> float:
    """Returns the size of what a function saves for its backward pass."""
    import jax

    _, _, shapes, others = OPS[name]
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in shapes]
    floats = [i for i, x in enumerate(arrays) if "float" in x.dtype.name]

    def backward(*values):
        def of_floats(*changed):
            every = dict(enumerate(values)) | dict(zip(floats, changed, strict=True))
            return function(*every.values(), *others)

        return jax.vjp(of_floats, *(values[i] for i in floats))[1]

    residuals = jax.tree.leaves(jax.eval_shape(backward, *arrays))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in residuals) / 2**20


def compile_steps(names: list[str], layers: int | None, unroll: int) -> None:
    row = tpu_compile.ROWS[0]
    job = {"row": dataclasses.asdict(row), "layers": layers, "form": unroll}
    print(f"\n{tpu_compile.heading(None)}\n{row}, layers: {layers or 'all'}, unroll: {unroll}")
    print(f"{'autodiff of':<18}{'M cycles':>9}{'':>9}{'temporaries':>13}", flush=True)
    first = None
    for name in ("", *names):
        with autodiff(name):
            found = tpu_compile.compiled(job)
        cycles = found["cycles"] + found["unestimated_cycles"]
        memory = found["temporaries"] / tpu_compile.GIB
        first = first or (cycles, memory)
        harness.record(autodiff_of=name, cycles=cycles, temporaries_gib=memory)
        print(
            f"{name or '(none)':<18}{cycles / 1e6:>9.2f}{cycles / first[0] - 1:>+9.1%}"
            f"{memory:>9.3f} GiB{memory / first[1] - 1:>+9.1%}",
            flush=True,
        )


@contextmanager
def autodiff(name: str) -> Iterator[None]:
    """Replaces an operation, wherever it was imported, by its function without the gradient."""
    import bert_jax.aot.lower  # noqa: F401, imports every user of an operation

    custom = operation(name) if name else None
    users = [
        (vars(module), key)
        for module in list(sys.modules.values())
        if name and getattr(module, "__name__", "").startswith("bert_jax.")
        for key, value in list(vars(module).items())
        if value is custom
    ]
    for names, key in users:
        names[key] = inspect.unwrap(custom)
    yield
    for names, key in users:
        names[key] = custom


if __name__ == "__main__":
    main()
