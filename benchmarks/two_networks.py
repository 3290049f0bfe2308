"""The cost of a step of two networks, beside that of each alone: compiled, no TPU is needed.

    python benchmarks/two_networks.py                  # BERT-base's sizes: half an hour
    python benchmarks/two_networks.py --layers=2       # a quick check

A chip of v5e has 8 rows of 512 tokens, data parallel on four, bfloat16, dropout on; the layers are
in a loop. A step of `distil`, whose student has half the layers of BERT-base, is compared with the
student's step on masked tokens, its head at the same positions, plus the teacher's evaluation of
them; a step of `electra_base` with its generator's step plus its discriminator's, each alone with
embeddings of its own. Cycles are the compiler's estimate, plus roofline times where it has none.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import harness

SLICE, ROWS = "v5e-4", 8
GIB = 2**30


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--only", default="distil,electra", help="the pairs to compile")
    parser.add_argument("--layers", type=int, help="number of the student's or model's layers")
    options = parser.parse_args()
    try:
        wanted = harness.some_of("only", options.only, PAIRS)
    except ValueError as error:
        parser.exit(1, f"error: {error}\n")
    harness.find_libtpu()
    from bert_jax.aot import topology

    topology.prepare()  # before anything imports JAX
    print(f"libtpu {topology.version()}, {harness.machine('jax', 'flax')}")
    print(f"{'':<34}{'M cycles':>10}{'temporaries':>14}{'ratio':>8}")
    for name in wanted:
        both, *apart = PAIRS[name](options)
        found = {}
        for title, lower in (*apart, both):
            print(f"compiling {title}", file=sys.stderr, flush=True)
            found[title] = cost(lower)
        alone = sum(cycles for title, (cycles, _) in found.items() if title != both[0])
        for title, (cycles, memory) in found.items():
            ratio = f"{cycles / alone:>8.3f}" if title == both[0] else ""
            harness.record(pair=name, program=title, cycles=cycles, temporaries=memory)
            print(f"{title:<34}{cycles / 1e6:>10.1f}{memory / GIB:>10.2f} GiB{ratio}", flush=True)


def mesh_of(config: Any) -> Any:
    from bert_jax.aot import topology
    from bert_jax.hardware import slices
    from bert_jax.parallel.mesh import make_mesh

    return make_mesh(config.mesh, topology.devices(slices.find(SLICE)))


def cost(lower: Callable[[], Any]) -> tuple[float, int]:
    """Returns a program's cycles and the bytes of its temporaries, on a chip."""
    from bert_jax.aot.cost.analysis import analyse
    from bert_jax.config.config_files import load
    from bert_jax.hardware import slices

    program = lower().compile()
    chip = slices.find(SLICE).generation.accelerator
    shape = dict(mesh_of(load("base")).shape)
    found = analyse(program.as_text(), mesh_shape=shape, accelerator=chip)
    cycles = found.cycles + found.unestimated_seconds * chip.clock
    return cycles, program.memory_analysis().temp_size_in_bytes


def shortened(name: str, layers: int | None, **values: Any) -> Any:
    """Returns a shipped config with the batch of this benchmark."""
    from bert_jax.config.config_files import load

    changes = {"compute.unroll_layers": 1, "compute.dtype": "bfloat16", **values}
    if layers:
        changes["model.num_hidden_layers"] = layers
    config = load(name).replace(changes)
    phase = dataclasses.replace(
        config.phases[0], batch_size=4 * ROWS, seq_length=512, micro_batches=1
    )
    return dataclasses.replace(config, phases=(phase,))


def distil(options: argparse.Namespace) -> tuple:
    from bert_jax.aot import lower

    layers = options.layers or 6
    picked = ",".join(str(2 * layer) for layer in range(layers))
    taught = shortened("distil", layers, **{"distillation.teacher_layers": picked})
    (phase,), mesh = taught.phases, mesh_of(taught)
    everywhere = dataclasses.replace(phase, max_predictions=phase.seq_length)
    alone = taught.replace({"distillation.teacher_layers": ""})
    teacher = alone.with_model(lower.teacher_of(taught))
    return (
        ("a step of distil", lambda: lower.lower(taught, phase, mesh)),
        ("the student alone, a step", lambda: lower.lower(alone, everywhere, mesh)),
        ("the teacher, its forward pass", lambda: lower_forward(teacher, everywhere, mesh)),
    )


def lower_forward(config: Any, phase: Any, mesh: Any) -> Any:
    """Lowers the evaluation of a model's masked-token head on a batch."""
    import jax

    from bert_jax.aot import lower
    from bert_jax.training.batches import empty_batch

    steps = lower.build(config, mesh)
    batch = steps.abstract_batch(empty_batch(config, phase), phase.batch_size)
    with jax.set_mesh(mesh):
        return steps.evaluate.lower(steps.abstract["params"], batch)


def electra(options: argparse.Namespace) -> tuple:
    from bert_jax.aot import lower
    from bert_jax.config.model_settings import generator_of

    both = shortened("electra_base", options.layers)
    (phase,), mesh = both.phases, mesh_of(both)
    words = both.replace({"data.replaced_tokens": False})
    generator = words.with_model(generator_of(both.model))
    return (
        ("a step of electra_base", lambda: lower.lower(both, phase, mesh)),
        ("the generator alone, a step", lambda: lower.lower(generator, phase, mesh)),
        ("the discriminator alone, a step", lambda: lower_discriminator(both, phase, mesh)),
    )


def lower_discriminator(config: Any, phase: Any, mesh: Any) -> Any:
    """Lowers a step of detection on a batch that says which tokens are replaced."""
    import jax
    import numpy as np

    from bert_jax.aot import lower
    from bert_jax.objectives import known_objectives
    from bert_jax.training.batches import empty_batch

    rows = empty_batch(config, phase)
    rows["replaced"] = np.zeros_like(rows["input_ids"])
    alone = dataclasses.replace(config, objectives="rtd")
    # A run refuses a discriminator without its generator.
    with mock.patch.object(known_objectives, "_check_generator"), jax.set_mesh(mesh):
        return lower.build(alone, mesh).lower_train(rows, phase)


PAIRS = {"distil": distil, "electra": electra}

if __name__ == "__main__":
    main()
