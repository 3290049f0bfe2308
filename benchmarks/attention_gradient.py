"""Effect of rounding in attention's gradient on training: bfloat16 before and after, and float32.

    python benchmarks/attention_gradient.py                         # this Python's documentation
    python benchmarks/attention_gradient.py --store=/path/to/store  # a store that `data build` made

Trains a model like the demo's, with dropout, in three variants: bfloat16 with the gradient of
attention before its fix (`attend_before` below), current bfloat16, and float32. For a given seed,
all three use the same initial parameters, rows and dropout masks. Each line has the held-out loss
at several steps.

A CPU without bfloat16 instructions computes in float32 and rounds: results are those of bfloat16,
times are not.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp

VARIANTS = {"bfloat16, before": "bfloat16", "bfloat16": "bfloat16", "float32": "float32"}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, help="an existing token store")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
    parser.add_argument("--rows", type=int, default=32, help="batch size, rows of 64 tokens")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout rate, everywhere")
    parser.add_argument("--deviation", type=float, default=0.02, help="of the initial weights")
    parser.add_argument("--evaluations", type=int, default=4, help="number, evenly spaced")
    options = parser.parse_args()
    harness.at_least_one(options, "steps", "seeds", "layers", "width", "rows", "evaluations")
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> None:
    from bert_jax.data_pipeline.store.store import open_store
    from bert_jax.runtime import compile_cache, cpu

    cpu.use_cpu_devices(1)
    os.environ["BERT_JAX_CACHE"] = str(folder / "cache")
    compile_cache.use()  # programs that the variants share are compiled once
    store = open_store(options.store or harness.build_store(folder, held_out_share=0.03))
    chunk = max(1, options.steps // options.evaluations)
    print(f"{harness.machine()}; {vars(options)}")
    print(f"{'held-out loss after steps':<28}", end="")
    print("".join(f"{n:>9}" for n in range(chunk, options.steps + 1, chunk)) + f"{'CPU s':>8}")
    contenders = {variant: Contender(store, variant, options) for variant in VARIANTS}
    last: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for seed in range(options.seeds):
        for variant, contender in contenders.items():
            start = time.process_time()
            losses = contender.train(seed, chunk)
            last[variant].append(losses[-1])
            harness.record(seed=seed, variant=variant, losses=losses)
            print(f"{f'seed {seed}, {variant}':<28}", end="")
            print("".join(f"{loss:>9.4f}" for loss in losses), end="")
            print(f"{time.process_time() - start:>8.0f}", flush=True)
    for variant, losses in last.items():
        print(f"{variant:<28}{statistics.mean(losses):.4f} mean final loss")


class Contender:
    """A training variant, compiled once for all seeds."""

    def __init__(self, store: Any, variant: str, options: argparse.Namespace):
        from bert_jax.config.config_files import load

        config = load("demo")
        model = dataclasses.replace(
            config.model,
            vocab_size=store.vocab_size,
            num_hidden_layers=options.layers,
            hidden_size=options.width,
            intermediate_size=4 * options.width,
            num_attention_heads=options.width // 32,
            initializer_range=options.deviation,
            hidden_dropout_prob=options.dropout,
            attention_probs_dropout_prob=options.dropout,
        )
        self.store, self.steps = store, options.steps
        self.attend = attend_before if variant.endswith("before") else None
        self.config = dataclasses.replace(
            config,
            model=model,
            data=dataclasses.replace(config.data, store=str(store.path)),
            phases=(
                dataclasses.replace(config.phases[0], steps=options.steps, batch_size=options.rows),
            ),
            compute=dataclasses.replace(config.compute, dtype=VARIANTS[variant], attention="xla"),
        )

    @functools.cached_property
    def start(self) -> Any:
        """A function from a PRNG key to the initial parameters, the same for all variants."""
        from bert_jax.objectives import pretraining_model
        from bert_jax.objectives.known_objectives import chosen

        config = self.config
        model, compute = config.model, dataclasses.replace(config.compute, dtype="float32")
        return jax.jit(
            lambda key: pretraining_model.init_params(model, compute, chosen(config.data), key)
        )

    @functools.cached_property
    def compiled(self) -> tuple:
        """(program, its training step, the held-out rows, the evaluation step)."""
        from bert_jax.objectives.corpus import Corpus
        from bert_jax.ops.attention import xla
        from bert_jax.parallel.mesh import make_mesh
        from bert_jax.training.batches import phase_batches
        from bert_jax.training.evaluation_pass import HeldOut
        from bert_jax.training.step import make_step_functions

        (phase,) = self.config.phases
        program = make_step_functions(
            self.config, make_mesh(self.config.mesh), Corpus.of(self.store)
        )
        rows = phase_batches(self.config, self.store, self.store.train, phase).batch(0)
        now = xla.attend
        xla.attend = self.attend or now
        try:
            train = program.compile_train(rows, phase)
        finally:
            xla.attend = now
        held_out = HeldOut(self.config, phase, self.store)
        return program, train, held_out, held_out.compile(program)

    def train(self, seed: int, chunk: int) -> list[float]:
        """Trains with a seed; returns the held-out loss after every `chunk` steps."""
        from bert_jax.parallel.mesh import make_mesh
        from bert_jax.training.batches import phase_batches

        config, (phase,) = dataclasses.replace(self.config, seed=seed), self.config.phases
        losses = []
        with jax.set_mesh(make_mesh(config.mesh)):
            program, train, held_out, evaluate = self.compiled
            batches = phase_batches(config, self.store, self.store.train, phase)
            state = program.init()
            state["params"] = jax.tree.map(
                lambda new, old: jax.device_put(new, old.sharding),
                self.start(jax.random.key(seed)),
                state["params"],
            )
            for step in range(self.steps):
                batch = harness.place(program, batches.batch(step), phase.batch_size)
                state, _ = train(state, batch)
                if (step + 1) % chunk == 0:
                    found = held_out.evaluate(program, state["params"], compiled=evaluate)
                    losses.append(found["loss"])
        return losses


def attend_before(q, k, v, examples, *, rate=0.0, key=None):
    """The previous attention: rounded y in the row sum, t summed from unrounded exponentials."""
    return _attend(q * (q.shape[-1] ** -0.5), k, v, examples, key, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q, k, v, examples, key, rate):
    return _forward(q, k, v, examples, key, rate)[0]


def _forward(q, k, v, examples, key, rate):
    scores = jnp.einsum("bqad,bkad->baqk", q, k, preferred_element_type=jnp.float32)
    allowed = (examples[:, :, None] == examples[:, None, :])[:, None]
    scores = jnp.where(allowed, scores, -1e9)
    e = jnp.exp(scores - scores.max(-1, keepdims=True))
    t = e.sum(-1).swapaxes(1, 2)[..., None]
    e = e.astype(v.dtype)
    y = jnp.einsum("baqk,bkad->bqad", _drop(e, key, rate), v, preferred_element_type=jnp.float32)
    y = (y / t).astype(v.dtype)
    return y, (q, k, v, e, t, y, key)


def _backward(rate, residuals, dy):
    q, k, v, e, t, y, key = residuals
    g = dy / t
    sums = (g * y).sum(-1).swapaxes(1, 2)[..., None]
    g = g.astype(dy.dtype)
    dv = jnp.einsum("baqk,bqad->bkad", _drop(e, key, rate), g)
    dp = jnp.einsum("bqad,bkad->baqk", g, v, preferred_element_type=jnp.float32)
    ds = (e * (_drop(dp, key, rate) - sums)).astype(e.dtype)
    dq = jnp.einsum("baqk,bkad->bqad", ds, k)
    return dq, jnp.einsum("baqk,bqad->bkad", ds, q), dv, None, None


_attend.defvjp(_forward, _backward)


def _drop(x, key, rate):
    from bert_jax.ops.dropout import keep_mask

    if key is None or rate == 0:
        return x
    return jnp.where(keep_mask(key, x.shape, rate), x * (1 / (1 - rate)), 0).astype(x.dtype)


if __name__ == "__main__":
    main()
