"""Minutes to the same held-out loss: bert_jax and transformers' PyTorch BERT on the same two cores.

    python benchmarks/learning.py --store=STORE                       # about three hours
    python benchmarks/learning.py --store=STORE --config=demo --choose=1 --minutes=5 --shares=5
    python benchmarks/learning.py --store=STORE --peer=1e-3,0.02 --shares=18,12 --whole  # an hour

Needs the [torch] extra. The peer is transformers' BertForPreTraining with its head at the masked
positions only, with published initial values and AdamW. Its rate and the spread of its weights are
chosen first: `--choose` minutes for each of six candidates (`--peer` leaves this out). Then it
trains `--minutes`; bert_jax trains a part of that time (`--shares`: a tenth, a fifth, …) as the
config says, and with each of its parts switched off in turn. Rates fall linearly to zero at the end
of the time; the time includes compilation, and counting where words start from counts, which is
also shown apart. All read the same rows of the same store and are measured on the same held-out
rows. All runs of a round take turns, so that both sides have the machine at equally good and bad
times.
"""

import argparse
import dataclasses
import functools
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import peer_torch

from bert_jax.configs.ablations import RANDOM_WORDS

THREADS = 2
TURN = 20.0  # seconds
HELD_OUT, COUNTING = "held-out", "counting"  # questions to a run
RATES = (2e-4, 5e-4, 1e-3)
WARM_UP = 0.05  # of the time
B2 = 0.98
STEPS = 10**6  # of a schedule: the share of the time that has passed, in millionths
# What is switched off in turn: changes of our config.
PUBLISHED = {"model.initializer": "published"}
ADAMW = {"optimizer.name": "adamw", "optimizer.learning_rate": 5e-4}
WITHOUT: dict[str, dict[str, Any]] = {
    "as it is": {},
    "random words": RANDOM_WORDS,
    "published start": PUBLISHED,
    "AdamW": ADAMW,
    "published start, AdamW": PUBLISHED | ADAMW,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of one of the sides."""

    side: str  # "peer" or "ours"
    minutes: float
    name: str = "as it is"  # of `WITHOUT`, for ours
    rate: float = 0.0  # for the peer
    spread: float = 0.0  # of initial weights, for the peer

    def __str__(self) -> str:
        if self.side == "ours":
            return f"bert_jax, {self.name}, {self.minutes:g} min"
        return f"transformers, rate {self.rate:g}, weights {self.spread:.3g}, {self.minutes:g} min"


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--store", type=Path, required=True, help="a token store")
    parser.add_argument("--config", default="wiki_books_small")
    parser.add_argument("--choose", type=float, default=10, help="minutes for each candidate")
    parser.add_argument("--peer", help="rate,spread: leave out the choice and use these")
    parser.add_argument("--minutes", type=float, default=40, help="of the peer's run")
    parser.add_argument("--shares", default="10,5", help="our runs: the peer's time over these")
    parser.add_argument("--whole", action="store_true", help="no runs with parts switched off")
    parser.add_argument("--run", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        contender(options, Run(**options.run))
        return
    with harness.errors_are_one_line():
        check(options)
        compare(options)


def check(options: argparse.Namespace) -> None:
    """Ends the benchmark at what no run can have, before the first starts."""
    from bert_jax.data_pipeline.store.store import open_store

    peer = options.peer and numbers("peer", options.peer)
    if peer and len(peer) != 2:
        harness.fail(f"--peer={options.peer}: give a rate and a spread, such as 1e-3,0.02")
    options.peer, options.shares = peer, numbers("shares", options.shares)
    for flag in ("choose", "minutes"):
        numbers(flag, str(getattr(options, flag)))
    if (phases := len(config_of(options, {}).phases)) > 1:
        harness.fail(f"--config={options.config} has {phases} phases; give one with a single phase")
    open_store(options.store, verify=False)


def numbers(flag: str, text: str) -> list[float]:
    """Parses "1,2"; ends the benchmark at what is no number above 0."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        harness.fail(f"--{flag}={text}: give numbers above 0")
    return found


def compare(options: argparse.Namespace) -> None:
    harness.use_cores(THREADS)
    print(harness.machine(), flush=True)
    rate, spread = options.peer or choose(options)
    peer = Run("peer", options.minutes, rate=rate, spread=spread)
    shares = sorted(options.shares, reverse=True)
    ours = [Run("ours", options.minutes / share) for share in shares]
    names = [] if options.whole else list(WITHOUT)[1:]
    others = [Run("ours", ours[-1].minutes, name) for name in names]
    runs = [peer, *ours, *others]
    ends = race(options, runs)
    print("\n| run | minutes | of these, counting | held-out MLM loss | reaches the peer's |")
    print("|---|---:|---:|---:|---|")
    for run, (loss, counting) in zip(runs, ends, strict=True):
        reaches = "" if run == peer else "yes" if loss <= ends[0][0] else "no"
        print(f"| {run} | {run.minutes:g} | {counting / 60:.2f} | {loss:.3f} | {reaches} |")


def choose(options: argparse.Namespace) -> tuple[float, float]:
    """Returns the rate and the spread of the weights with which the peer learns most."""
    spreads = sorted({0.02, config_of(options, {}).model.initializer_range})
    candidates = [
        Run("peer", options.choose, rate=rate, spread=spread)
        for spread in spreads
        for rate in RATES
    ]
    ends = dict(zip(candidates, race(options, candidates), strict=True))
    best = min(candidates, key=ends.__getitem__)
    return best.rate, best.spread


def race(options: argparse.Namespace, runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Trains all runs in turns; returns the held-out loss of each at the end, and the seconds in
    which it counted words."""
    shared = [__file__, f"--store={options.store}", f"--config={options.config}"]
    commands = {
        number: [*shared, f"--run={json.dumps(dataclasses.asdict(run))}"]
        for number, run in enumerate(runs)
    }
    with harness.contenders(commands, OMP_NUM_THREADS=THREADS) as contenders:
        left = dict(contenders)
        while left:
            for number, contender in list(left.items()):
                if contender.ask(str(TURN)) >= 60 * runs[number].minutes:
                    del left[number]
        ends = [(each.ask(HELD_OUT), each.ask(COUNTING)) for each in contenders.values()]
    for run, (loss, counting) in zip(runs, ends, strict=True):
        harness.record(run=str(run), loss=loss, counting_seconds=counting)
        print(f"# {run}: held-out MLM loss {loss:.3f}", flush=True)
    return ends


def config_of(options: argparse.Namespace, changes: dict[str, Any]) -> Any:
    """Returns the config on the store, with changes; its rate falls to zero after `STEPS` steps."""
    from bert_jax.config.config_files import load
    from bert_jax.data_pipeline.store.store import open_store

    store = open_store(options.store, verify=False)
    ours = {
        "data.store": str(options.store),
        "evaluation.batches": 16,
        "model.vocab_size": store.vocab_size,
        "optimizer.schedule": "fairseq",
        "optimizer.warmup_steps": round(WARM_UP * STEPS),
        "phases[0].steps": STEPS,
    }
    return load(options.config).replace(ours | changes)


def contender(options: argparse.Namespace, run: Run) -> None:
    """Runs one side in its process: answers with the seconds of training so far, or the loss."""
    talk = harness.talk_apart()
    total, spent, trainer = 60 * run.minutes, 0.0, None

    def train(seconds: float) -> float:
        nonlocal spent, trainer
        start, before = time.perf_counter(), spent
        trainer = trainer or (Peer if run.side == "peer" else Ours)(options, run)
        while spent < total and spent - before < seconds:
            trainer.step(spent / total)
            spent = before + time.perf_counter() - start
        return spent

    for line in sys.stdin:
        question = line.strip()
        if question == COUNTING:
            reply = trainer.counting
        else:
            reply = trainer.held_out() if question == HELD_OUT else train(float(question))
        talk.write(json.dumps(reply) + "\n")


class Ours:
    """bert_jax's step on the CPU, with the rate of the time that has passed."""

    def __init__(self, options: argparse.Namespace, run: Run):
        import jax

        from bert_jax.data_pipeline.batch import prefetch
        from bert_jax.data_pipeline.store.store import open_store
        from bert_jax.objectives.corpus import Corpus
        from bert_jax.parallel import global_batch
        from bert_jax.parallel.mesh import make_mesh
        from bert_jax.runtime import cpu
        from bert_jax.training.batches import phase_batches
        from bert_jax.training.evaluation_pass import HeldOut
        from bert_jax.training.step import make_step_functions

        cpu.use_cpu_devices(1)  # with all cores
        cpu.keep_memory()
        config = config_of(options, WITHOUT[run.name])
        (phase,), store = config.phases, open_store(config.data.store, verify=False)
        mesh = make_mesh(config.mesh)
        jax.set_mesh(mesh)
        self._held_out = HeldOut(config, phase, store)
        self._program = make_step_functions(config, mesh, Corpus.of(store))
        batches = phase_batches(config, store, store.train, phase)
        self._train = self._program.compile_train(batches.batch(0, rows=[]), phase)
        self._state = self._program.init()
        began = time.perf_counter()
        self._state = start(self._state, config, store)
        self.counting = time.perf_counter() - began

        def make(index: int) -> dict[str, jax.Array]:
            rows = functools.partial(batches.batch, index)
            return global_batch.global_batch(rows, self._program.rows, phase.batch_size)

        self._batches = prefetch(make, 0, STEPS)

    def step(self, share: float) -> None:
        """Trains one step; the schedule is a function of the state's step."""
        import jax

        step = jax.device_put(np.int32(share * STEPS), self._state["step"].sharding)
        _, batch = next(self._batches)
        self._state, metrics = self._train({**self._state, "step": step}, batch)
        jax.block_until_ready(metrics)

    def held_out(self) -> float:
        return self._held_out.evaluate(self._program, self._state["params"])["mlm/loss"]


def start(state: Any, config: Any, store: Any) -> Any:
    """Returns the state of step 0, with what starts from counts of the store."""
    from bert_jax.distributed.peers import single_process_group
    from bert_jax.runtime.activity import ActivityClock
    from bert_jax.training import word_start
    from bert_jax.workdir.layout import Workdir

    if not word_start.is_counted(config.model):
        return state
    with tempfile.TemporaryDirectory() as folder:
        peers = single_process_group(ActivityClock())
        return word_start.start_words(state, config, store, Workdir.open(Path(folder)), peers)


class Peer:
    """transformers' BertForPreTraining, its head at the masked positions only."""

    counting = 0.0

    def __init__(self, options: argparse.Namespace, run: Run):
        import torch

        from bert_jax.data_pipeline.batch import prefetch
        from bert_jax.data_pipeline.store.store import open_store
        from bert_jax.training.batches import held_out_config, phase_batches
        from bert_jax.training.evaluation_pass import HeldOut

        torch.set_num_threads(THREADS)
        config = config_of(options, PUBLISHED | {"model.initializer_range": run.spread})
        (phase,), store = config.phases, open_store(config.data.store, verify=False)
        with tempfile.TemporaryDirectory() as folder:
            peer_torch.write_start(config, store.special.pad, Path(folder))
            self._model = peer_torch.load_model(Path(folder))
        self._optimizer, self._rate = peer_torch.make_optimizer(self._model), run.rate
        for group in self._optimizer.param_groups:
            group["betas"] = (0.9, B2)
        batches = phase_batches(config, store, store.train, phase)
        self._batches = prefetch(batches.batch, 0, STEPS)
        self._count = HeldOut(config, phase, store).num_batches
        held_out = held_out_config(config, phase)
        self._held_out = phase_batches(held_out, store, store.held_out, held_out.phases[0])

    def step(self, share: float) -> None:
        import torch

        rate = self._rate * min(share / WARM_UP, (1 - share) / (1 - WARM_UP))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        _, batch = next(self._batches)
        peer_torch.masked_loss(self._model, tensors(batch)).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), peer_torch.CLIP_NORM)
        self._optimizer.step()

    def held_out(self) -> float:
        import torch

        loss, count = 0.0, 0
        self._model.eval()
        for index in range(self._count):
            batch = tensors(self._held_out.evaluation_batch(index))
            with torch.no_grad():
                losses = peer_torch.word_losses(self._model, batch)
            loss, count = loss + float(losses.sum()), count + len(losses)
        return loss / count


def tensors(batch: harness.Batch) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(values) for name, values in batch.items()}


if __name__ == "__main__":
    main()
