"""The cost of a layer with a window, and of one without, by the length of the row.

    python benchmarks/long_rows.py                # v5e, compiled: a minute or two; no TPU is needed
    python benchmarks/long_rows.py --cpu          # timed on this CPU instead

The forward and backward pass of one layer of `modernbert_base` on 32,768 tokens, in rows of 1,024
and of 8,192, a chip of v5e alone, bfloat16. Cycles are the compiler's estimate, plus the roofline
time of the kernel of a layer without a window, of which it has none; temporaries are the memory in
addition to parameters, states and gradients. Both depend on the number of tokens, too, of which
more fit on the chip if they are few: so they are equal. On the CPU float32 layers 256 wide take
turns on 8,192 tokens.
"""

import functools
import itertools

import harness

LENGTHS = (1024, 8192)
TOKENS = 32_768


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--cpu", action="store_true", help="time layers on this CPU")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds")
    parser.add_argument("--windows", default="128,0", help="tokens of a window; 0 = none")
    options = parser.parse_args()
    harness.at_least_one(options, "rounds")
    windows = [int(window) for window in options.windows.split(",")]
    if options.cpu:
        time_on_cpu(windows, options.rounds)
    else:
        compile_for_v5e(windows)


def compile_for_v5e(windows: list[int]) -> None:
    harness.find_libtpu()
    from bert_jax.aot import topology

    topology.prepare()  # before anything imports JAX
    from bert_jax.aot.cost.analysis import analyse
    from bert_jax.config.config_files import load
    from bert_jax.hardware import slices
    from bert_jax.parallel.mesh import make_mesh

    config, found = load("modernbert_base"), slices.find("v5e-4")
    mesh = make_mesh(config.mesh, topology.devices(found))
    print(f"{'window':>8}{'row':>8}{'cycles a token':>16}{'temporaries':>14}")
    for window, length in itertools.product(windows, LENGTHS):
        rows = TOKENS // length
        compiled = lowered_layer(config.model, "bfloat16", window, length, rows, mesh).compile()
        chip = found.generation.accelerator
        analysis = analyse(
            compiled.as_text(), mesh_shape=dict.fromkeys(mesh.axis_names, 1), accelerator=chip
        )
        cycles = (analysis.compute_seconds + analysis.unestimated_seconds) * chip.clock / TOKENS
        memory = compiled.memory_analysis().temp_size_in_bytes
        harness.record(window=window, length=length, cycles=cycles, temporaries=memory)
        print(f"{window or 'all':>8}{length:>8}{cycles:>16.1f}{memory / 2**20:>10.1f} MiB")


def lowered_layer(model, dtype, window, length, count, mesh):
    """Returns the lowered gradient of a layer's parameters and input."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from bert_jax.config.schema import ComputeConfig
    from bert_jax.model.attention import Kind
    from bert_jax.model.encoder import Layer
    from bert_jax.model.layers import Keys
    from bert_jax.ops.rotary import rotation

    compute = ComputeConfig(dtype=dtype)
    graph, params = nnx.split(
        nnx.eval_shape(lambda: Layer(model, compute, Keys(jax.random.key(0))))
    )

    def loss(params, x_BxSxH, examples_BxS):
        positions = jnp.broadcast_to(jnp.arange(length)[None], examples_BxS.shape)
        kind = Kind(window, True, rotation(positions, model.head_dim, model.local_rope_theta))
        y_BxSxH = nnx.merge(graph, params)(x_BxSxH, examples_BxS, kind, None)
        return jnp.square(y_BxSxH.astype(jnp.float32)).sum()

    rows = (count, length)
    states = jax.ShapeDtypeStruct((*rows, model.hidden_size), dtype)
    shapes = params, states, jax.ShapeDtypeStruct(rows, "int32")
    gradient = jax.value_and_grad(loss, argnums=(0, 1))
    if mesh is None:
        return jax.jit(gradient).lower(*shapes)
    one = jax.sharding.SingleDeviceSharding(mesh.devices.flat[0])
    return jax.jit(gradient, in_shardings=one, out_shardings=one).lower(*shapes)


def time_on_cpu(windows: list[int], rounds: int) -> None:
    import jax
    import jax.numpy as jnp

    from bert_jax.config.config_files import load

    print(harness.machine("jax"))
    model = load("ettin_17m").model
    measures = {}
    for window, length in itertools.product(windows, LENGTHS):
        compiled = lowered_layer(
            model, "float32", window, length, LENGTHS[-1] // length, None
        ).compile()
        arrays = jax.tree.map(lambda x: jnp.full(x.shape, 0.01, x.dtype), compiled.args_info[0])
        run = functools.partial(lambda f, a: jax.block_until_ready(f(*a)), compiled, arrays)
        run()
        measures[window, length] = functools.partial(harness.seconds, run)
    found = harness.medians(measures, rounds)
    for (window, length), seconds in found.items():
        ratio = seconds / found[window, LENGTHS[0]]
        harness.record(window=window, length=length, seconds=seconds, ratio=ratio)
        print(
            f"window {window or 'all':>4}, rows of {length:>5}: {seconds:.3f} s, {ratio:.2f} times"
        )


if __name__ == "__main__":
    main()
