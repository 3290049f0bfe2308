"""What a compiled step does and takes, from its text: by hand, and a real program for TPU v5e."""

import dataclasses
import json
import lzma
import re
from collections import Counter
from pathlib import Path

import pytest
import shape_search
from etils import epath

from bert_jax.aot import tpu_sections
from bert_jax.aot.cost import collectives
from bert_jax.aot.cost.analysis import Analysis, analyse
from bert_jax.aot.hlo import sources
from bert_jax.aot.hlo.stack_frames import Frame
from bert_jax.errors import UserError
from bert_jax.hardware.accelerators import BY_DEVICE_KIND, Accelerator
from bert_jax.reporting import sections
from bert_jax.reporting.html import Page

# Round numbers: a cycle is 1 us, a byte of memory 1 ns, of links (both directions) 1 ns, of the
# network 10 ns.
ROUND = Accelerator(
    ("round",), 1e12, 2**34,
    memory_bandwidth=1e9, ici_bandwidth=2e9, dcn_bandwidth=1e8, clock=1e6,
)  # fmt: skip
MESH = {"slice": 1, "data": 4, "fsdp": 2, "tensor": 2}


def program(entry: str, others: str = "") -> str:
    return f"HloModule jit_step\n\n{others}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{entry}\n}}\n"


def estimate(entry: str, others: str = "", mesh: dict[str, int] = MESH) -> Analysis:
    return analyse(program(entry, others), mesh_shape=mesh, accelerator=ROUND)


def compute(name: str, cycles: int) -> str:
    """An instruction with so many cycles."""
    return (
        f"  %{name} = f32[8]{{0}} fusion(%p), kind=kLoop, calls=%f, "
        f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}\n'
    )


@pytest.mark.parametrize(
    ("line", "size", "sent"),
    [
        # 1,024 bytes on a device and four devices, by the formulas of a ring
        ("f32[256]{0} all-reduce(%x), replica_groups=[4,4]<=[16], to_apply=%add", 1024, 1536),
        ("f32[1024]{0} all-gather(%x), replica_groups=[4,4]<=[16], dimensions={0}", 4096, 3072),
        ("f32[64]{0} reduce-scatter(%x), replica_groups=[4,4]<=[16], to_apply=%add", 1024, 768),
        ("f32[256]{0} all-to-all(%x), replica_groups=[4,4]<=[16], dimensions={0}", 1024, 768),
        ("f32[256]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}", 1024, 1024),
    ],
)
def test_a_collective_sends_what_a_ring_must(line: str, size: int, sent: int) -> None:
    found = estimate(f"  %x = f32[256]{{0}} parameter(0)\n  ROOT %c = {line}, channel_id=1")
    (one,) = found.collectives
    assert (one.kind, one.bytes, one.sent, one.runs) == (
        line.split()[1].split("(")[0],
        size,
        sent,
        1,
    )
    assert not one.asynchronous
    assert one.seconds == pytest.approx(sent * 1e-9)
    assert found.collective_seconds == found.exposed_seconds == pytest.approx(sent * 1e-9)
    assert found.step_seconds == pytest.approx(sent * 1e-9)


PARAMETER = "  %p = f32[256]{0} parameter(0)\n"
REDUCE = "replica_groups=[4,4]<=[16], to_apply=%add, channel_id=1"
PAIRS = {
    "start and done": (
        "",
        f"  %s = f32[256]{{0}} all-reduce-start(%p), {REDUCE}\n",
        "  %d = f32[256]{0} all-reduce-done(%s)\n",
    ),
    "wrapped": (
        "%wrapped (w: f32[256]) -> f32[256] {\n  %w = f32[256]{0} parameter(0)\n"
        f"  ROOT %a = f32[256]{{0}} all-reduce(%w), {REDUCE}\n}}\n",
        "  %s = ((f32[256]), f32[256], u32[]) async-start(%p), calls=%wrapped\n"
        "  %u = ((f32[256]), f32[256], u32[]) async-update(%s)\n",
        "  %d = f32[256]{0} async-done(%u)\n",
    ),
    "on another core": (
        "%called (w: f32[256]) -> f32[256] {\n  %w = f32[256]{0} parameter(0)\n"
        f"  ROOT %a = f32[256]{{0}} all-reduce(%w), {REDUCE}\n}}\n",
        '  %n = token[] custom-call(), custom_call_target="PrepareAsyncCallDone"\n'
        "  %s = ((f32[256], token[]), f32[256]) call-start(%p, %n), "
        'async_execution_thread="sparsecore", to_apply=%called\n',
        "  %d = f32[256]{0} call-done(%s)\n",
    ),
    "fusions on one channel": (
        "".join(
            f"%{name} (w: f32[256]) -> f32[256] {{\n  %w{name} = f32[256]{{0}} parameter(0)\n"
            f"  %a{name} = f32[256]{{0}} all-reduce(%w{name}), {REDUCE}\n"
            f"  ROOT %c{name} = f32[256]{{0}} custom-call(%a{name}), "
            f"custom_call_target={target}\n}}\n"
            for name, target in (
                ("one", '"AsyncCollectiveStart"'),
                ("two", '"Other"'),
                ("three", '"AsyncCollectiveDone"'),
            )
        ),
        "  %s = f32[256]{0} fusion(%p), kind=kCustom, calls=%one\n"
        "  %b = f32[256]{0} fusion(%s), kind=kOutput, calls=%two, "
        'backend_config={"estimated_cycles":"0"}\n',
        "  %d = f32[256]{0} fusion(%b), kind=kCustom, calls=%three\n",
    ),
}


@pytest.mark.parametrize("form", PAIRS)
@pytest.mark.parametrize(("cycles", "exposed"), [(0, 1536e-9), (1, 536e-9), (2, 0.0)])
def test_an_asynchronous_collective_counts_once_and_waits_only_for_the_rest(
    form: str, cycles: int, exposed: float
) -> None:
    """1,536 ns of links beside so many microseconds of computation."""
    others, start, done = PAIRS[form]
    lines = start + compute("work", cycles) + done + compute("after", 5)
    found = estimate(PARAMETER + lines, others)
    (one,) = found.collectives
    assert (one.kind, one.runs, one.bytes, one.asynchronous) == ("all-reduce", 1, 1024, True)
    assert found.collective_seconds == pytest.approx(1536e-9)
    assert found.exposed_seconds == pytest.approx(exposed, abs=1e-12)
    assert found.unestimated == ()
    assert found.step_seconds == pytest.approx((cycles + 5) * 1e-6 + exposed)


def test_a_loop_may_advance_a_collective_that_started_before_it() -> None:
    """Its fusions on the channel are no collectives of their own."""
    fusions, start, done = PAIRS["fusions on one channel"]
    start, _, advance = start.partition("  %b = ")
    done = done.replace("%b", "%s")
    loop = (
        "%turn (x: s32[]) -> s32[] {\n  %x = s32[] parameter(0)\n  %o = s32[] constant(1)\n"
        "  ROOT %y = s32[] add(%x, %o)\n}\n"
        "%body (t: (s32[], f32[256])) -> (s32[], f32[256]) {\n"
        "  %t = (s32[], f32[256]) parameter(0)\n  %i = s32[] get-tuple-element(%t), index=0\n"
        "  %v = f32[256]{0} get-tuple-element(%t), index=1\n"
        "  %n = s32[] fusion(%i), kind=kLoop, calls=%turn\n"
        f"  %b = {advance.replace('(%s)', '(%v)')}"
        "  ROOT %r = (s32[], f32[256]) tuple(%n, %b)\n}\n"
        "%condition (t: (s32[], f32[256])) -> pred[] {\n"
        "  %t = (s32[], f32[256]) parameter(0)\n  %i = s32[] get-tuple-element(%t), index=0\n"
        "  %m = s32[] constant(12)\n  ROOT %l = pred[] compare(%i, %m), direction=LT\n}\n"
    )
    lines = (
        "  %z = s32[] constant(0)\n  %w = (s32[], f32[256]) tuple(%z, %p)\n"
        "  %q = (s32[], f32[256]) while(%w), condition=%condition, body=%body, "
        'backend_config={"known_trip_count":{"n":"12"}}\n'
    )
    found = estimate(PARAMETER + start + lines + done, fusions + loop)
    (one,) = found.collectives
    assert (one.runs, one.bytes, one.asynchronous) == (1, 1024, True)


def test_collectives_on_the_same_links_wait_for_one_another() -> None:
    lines = "".join(f"  %s{n} = f32[256]{{0}} all-reduce-start(%p), {REDUCE}\n" for n in (1, 2))
    lines += compute("work", 2)
    lines += "".join(f"  %d{n} = f32[256]{{0}} all-reduce-done(%s{n})\n" for n in (1, 2))
    assert estimate(PARAMETER + lines).exposed_seconds == pytest.approx(2 * 1536e-9 - 2e-6)


def test_a_reduce_scatter_is_seen_in_its_fusion() -> None:
    fused = (
        "%scatter (i: f32[256]) -> f32[64] {\n  %i = f32[256]{0} parameter(0)\n"
        f"  %a = (f32[256]{{0}}) all-reduce(%i), {REDUCE}\n"
        "  %g = f32[256]{0} get-tuple-element(%a), index=0\n"
        "  %o = u32[] constant(0)\n"
        "  ROOT %d = f32[64]{0} dynamic-slice(%g, %o), dynamic_slice_sizes={64}\n}\n"
    )
    found = estimate(
        PARAMETER + "  ROOT %f = f32[64]{0} fusion(%p), kind=kCustom, calls=%scatter", fused
    )
    (one,) = found.collectives
    assert (one.kind, one.bytes, one.sent) == ("reduce-scatter", 1024, 768)


def test_what_goes_between_slices_is_an_exchange_over_the_network() -> None:
    attributes = (
        "is_host_transfer=true, frontend_attributes={"
        '_xla_host_transfer_rendezvous="all-reduce.7_0",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    entry = (
        f"{PARAMETER}  %t = token[] after-all()\n"
        f"  %s = (f32[256]{{0}}, u32[], token[]) send(%p, %t), channel_id=5, {attributes}\n"
        f"  %r = (f32[256]{{0}}, u32[], token[]) recv(%t), channel_id=4, {attributes}\n"
        f"{compute('work', 4)}"
        "  %e = token[] send-done(%s), channel_id=5\n"
        "  %d = (f32[256]{0}, token[]) recv-done(%r), channel_id=4\n"
    )
    found = estimate(entry, mesh={"slice": 2, "data": 8})
    (one,) = found.collectives
    assert (one.kind, one.axes, one.network, one.devices) == ("all-reduce", ("slice",), "dcn", 2)
    assert (one.bytes, one.sent, one.asynchronous) == (1024, 1024, True)
    assert found.exposed_seconds == pytest.approx(10240e-9 - 4e-6)


def test_an_unknown_bandwidth_leaves_the_step_unknown() -> None:
    line = f"{PARAMETER}  ROOT %c = f32[256]{{0}} all-reduce(%p), {REDUCE}"
    unknown = dataclasses.replace(ROUND, ici_bandwidth=None)
    found = analyse(program(line), mesh_shape=MESH, accelerator=unknown)
    assert found.collectives[0].bytes == 1024
    assert found.collective_seconds is found.exposed_seconds is found.step_seconds is None


FUSED = (
    "%g (t: f32[9000,8], i: s32[2000]) -> f32[2000,8] {\n  %t = f32[9000,8]{1,0} parameter(0)\n"
    "  %i = s32[2000]{0} parameter(1)\n"
    "  ROOT %o = f32[2000,8]{1,0} gather(%t, %i), offset_dims={1}\n}\n"
    "%s (b: f32[2000]) -> f32[600,2] {\n  %b = f32[2000]{0} parameter(0)\n"
    "  %c = f32[1000,2]{1,0} bitcast(%b)\n"
    "  %l = f32[600,2]{1,0} slice(%c), slice={[0:600], [0:2]}\n"
    "  ROOT %n = f32[600,2]{1,0} negate(%l)\n}\n"
    "%w (b: f32[2000]) -> f32[1500] {\n  %b = f32[2000]{0} parameter(0)\n"
    "  %l = f32[1500]{0} slice(%b), slice={[0:1500]}\n"
    "  %m = f32[1500]{0} slice(%b), slice={[500:2000]}\n"
    "  ROOT %n = f32[1500]{0} add(%l, %m)\n}\n"
    "%a (b: f32[2000]) -> (f32[2000], f32[1500]) {\n  %b = f32[2000]{0} parameter(0)\n"
    "  %l = f32[1500]{0} slice(%b), slice={[0:1500]}\n  %n = f32[2000]{0} negate(%b)\n"
    "  ROOT %r = (f32[2000]{0}, f32[1500]{0}) tuple(%n, %l)\n}\n"
)


@pytest.mark.parametrize(
    ("line", "kind", "moved", "flops"),
    [
        ("(f32[2000]{0}) sort(%big), dimensions={0}, to_apply=%less", "sort", 16000, 0),
        ("u32[2000]{0} rng-bit-generator(%big)", "rng-bit-generator", 8000, 0),
        ('f32[2000]{0} custom-call(%big), custom_call_target="F"', "F", 16000, 0),
        (
            'f32[2000]{0} custom-call(%big), custom_call_target="tpu_custom_call", backend_config='
            '{"custom_call_config":{"body":"aGE=","cost_estimate":{"flops":"9000000",'
            '"transcendentals":"7","bytes_accessed":"500","remote_bytes_transferred":"0"}}}',
            "tpu_custom_call", 500, 9_000_000,
        ),
        ("f32[2000,8]{1,0} fusion(%table, %at), kind=kCustom, calls=%g", "gather", 128000, 0),
        ("f32[2000]{0} dynamic-update-slice(%big, %row, %z)", "dynamic-update-slice", 40, 0),
        ("f32[] add(%z, %z)", "scalars", 4, 0),
        # A part is read, or all, or a part of it twice.
        ("f32[1200]{0} slice(%big), slice={[0:1200]}", "slice", 9600, 0),
        ("f32[600,2]{1,0} fusion(%big), kind=kLoop, calls=%s", "fusion", 9600, 0),
        ("f32[1500]{0} fusion(%big), kind=kLoop, calls=%w", "fusion", 14000, 0),
        ("(f32[2000]{0}, f32[1500]{0}) fusion(%big), kind=kLoop, calls=%a", "fusion", 22000, 0),
        # Updates are read, and places written, of which the table has no more than it is large.
        ("f32[9000,8]{1,0} scatter(%table, %at, %few), to_apply=%add", "scatter", 128000, 0),
        ("f32[2000]{0} scatter(%big, %at, %few), to_apply=%add", "scatter", 72000, 0),
    ],
)  # fmt: skip
def test_what_has_no_cycles_is_bounded_by_bytes_and_operations(
    line: str, kind: str, moved: int, flops: int
) -> None:
    given = (
        "  %big = f32[2000]{0} parameter(0)\n  %table = f32[9000,8]{1,0} parameter(1)\n"
        "  %at = s32[2000]{0} parameter(2)\n  %row = f32[5]{0} parameter(3)\n"
        "  %z = s32[] constant(0)\n  %few = f32[2000,8]{1,0} parameter(4)\n"
    )
    found = estimate(given + f"  ROOT %x = {line}", FUSED)
    (one,) = found.unestimated
    assert (one.kind, one.runs, one.bytes, one.flops) == (kind, 1, moved, flops)
    assert one.seconds == pytest.approx(max(moved * 1e-9, flops * 1e-12))
    assert found.unestimated_seconds == found.step_seconds == one.seconds
    assert found.cycles == 0


def test_copies_beside_the_computation_are_in_no_sum() -> None:
    entry = (
        f"{PARAMETER}  %s = (f32[256]{{0:S(1)}}, f32[256]{{0}}, u32[]) copy-start(%p)\n"
        "  %t = ((f32[256]{0}), f32[64]{0:S(1)}, s32[]) slice-start(%p), slice={[0:64]}\n"
        "  %d = f32[256]{0:S(1)} copy-done(%s)\n  %e = f32[64]{0:S(1)} slice-done(%t)\n"
    )
    found = estimate(entry)
    assert (found.copies.runs, found.copies.bytes) == (2, 1024 + 256)
    assert found.step_seconds == 0
    assert found.unestimated == ()


def frames(*places: tuple[str, int, str]) -> list[Frame]:
    return [Frame(f"/src/bert_jax/{file}", line, function) for file, line, function in places]


EMBEDDINGS = ("model/encoder.py", 48, "Embeddings.__call__")
POOLED = ("model/encoder.py", 157, "Encoder.pooled")
UPDATE = ("optimizers/optimizer.py", 35, "update")
STEP = ("training/step.py", 97, "_make_train_step.<locals>.train_step")
PART = ("training/gradients.py", 161, "partitioned_gradients.<locals>.grad_fn")
LAYER = ("model/encoder.py", 80, "Layer.__call__")
FEED_FORWARD = ("model/encoder.py", 65, "FeedForward.__call__")
ATTENTION = ("model/attention.py", 46, "Attention.__call__")
KERNEL = ("ops/attention/xla.py", 29, "attend")
MODEL = ("objectives/pretraining_model.py", 129, "PretrainingModel.__call__")


@pytest.mark.parametrize(
    ("stack", "part", "line"),
    [
        (frames(EMBEDDINGS, MODEL), "embeddings", "model/encoder.py:48"),
        (
            frames(("model/layers.py", 44, "Dense.__call__"), FEED_FORWARD, LAYER),
            "feed-forward", "model/encoder.py:65 > model/layers.py:44",
        ),
        (frames(KERNEL, ATTENTION, LAYER), "attention", "ops/attention/xla.py:29"),
        (
            frames(("ops/dropout.py", 75, "dropout"), ATTENTION, LAYER),
            "attention", "model/attention.py:46 > ops/dropout.py:75",
        ),
        (
            frames(("ops/rotary.py", 44, "rotate"), ATTENTION, LAYER),
            "attention", "model/attention.py:46 > ops/rotary.py:44",
        ),
        (frames(LAYER), "layer loop", "model/encoder.py:80"),
        (frames(POOLED, MODEL), "heads", "model/encoder.py:157"),
        (frames(STEP), "optimizer", "training/step.py:97"),
        (frames(PART), "other", "training/gradients.py:161"),
        (
            [Frame("/v/site-packages/optax/base.py", 3), *frames(UPDATE)],
            "optimizer", "optimizers/optimizer.py:35",
        ),
        ([Frame("/usr/lib/python3.11/runpy.py", 9)], "other", "(no source)"),
    ],
)  # fmt: skip
def test_an_operation_belongs_to_a_part_and_a_line(stack: list, part: str, line: str) -> None:
    assert sources.part(stack) == part
    assert sources.line(stack) == line


@pytest.fixture(scope="module")
def text() -> str:
    """A real training step: two layers, 128 wide, scanned, on 4 x 2 x 2 devices of v5e.

    Made by libtpu 0.0.42. Of its attributes those that nothing here reads are left out, and of most
    fusions all but what they begin with and end with.
    """
    file = Path(__file__).parents[1] / "goldens" / "v5e_tiny.hlo.xz"
    return lzma.decompress(file.read_bytes()).decode()


@pytest.fixture(scope="module")
def real(text: str) -> Analysis:
    accelerator = BY_DEVICE_KIND["TPU v5 lite"]
    return analyse(text, mesh_shape=MESH, accelerator=accelerator, top=10_000)


def test_cycles_of_a_real_program_add_up(text: str, real: Analysis) -> None:
    """Against a sum over the lines: two loops over two layers, everything else once."""
    blocks = re.split(r"\n(?=%|ENTRY)", text)
    sums = {
        re.match(r"(?:ENTRY )?%([\w.-]+)", block)[1]: sum(
            map(int, re.findall(r'estimated_cycles":"(\d+)"', block))
        )
        for block in blocks[1:]
    }
    bodies, conditions = (re.findall(rf"{key}=%([\w.-]+)", text) for key in ("body", "condition"))
    entry = re.search(r"^ENTRY %([\w.-]+)", text, re.M)[1]
    assert len(bodies) == len(conditions) == 2
    total = sums[entry] + 2 * sum(sums[b] for b in bodies) + 3 * sum(sums[c] for c in conditions)
    assert real.cycles == total == 1_718_264
    assert real.compute_seconds == pytest.approx(total / 1.5e9)
    assert list(real.trips.values()) == [2, 2]
    for grouped in (real.shares, real.lines, real.operations):
        assert sum(one.total for one in grouped) == total
    assert [one.total for one in real.operations] == sorted(
        (one.total for one in real.operations), reverse=True
    )


def test_cycles_of_a_real_program_are_those_of_the_model(real: Analysis) -> None:
    directions = Counter((share.part, share.direction) for share in real.shares)
    for part in ("embeddings", "attention", "feed-forward", "layer loop", "heads"):
        assert {d for p, d in directions if p == part} == {"forward", "backward"}
    assert {d for p, d in directions if p == "optimizer"} == {"update"}
    assert sum(share.total for share in real.shares if share.part == "other") < 0.02 * real.cycles
    # Matrix products of the layers and the vocabulary.
    named = {line.source.line for line in real.lines}
    assert {
        "model/encoder.py:65 > model/layers.py:44",
        "model/attention.py:37 > model/layers.py:44",
        "objectives/pretraining_model.py:98",
    } <= named


def test_collectives_of_a_real_program_have_the_axes_they_need(real: Analysis) -> None:
    """Fully sharded parameters are gathered and their gradients scattered, over fsdp alone; what
    the tensor axis splits is summed; gradients are summed over the rest."""
    found = Counter[tuple[str, tuple[str, ...]]]()
    for one in real.collectives:
        assert (one.network, one.partly) == ("ici", False)
        found[one.kind, one.axes] += one.bytes
    assert found["all-gather", ("fsdp",)] > 0
    assert found["reduce-scatter", ("fsdp",)] > 0
    # Each layer ends its attention and its feed-forward network with a sum over the tensor axis,
    # and so do their gradients: [16, 128, 128] in bfloat16, two layers; the embedding's lookup in
    # float32 is a ninth.
    assert found["all-reduce", ("tensor",)] >= 4 * 2 * (16 * 128 * 128 * 2) + 16 * 128 * 128 * 4
    # The word table's gradient: half of it on a device, float32.
    assert found["all-reduce", ("data", "fsdp")] > 30522 // 2 * 128 * 4
    hidden = real.collective_seconds - real.exposed_seconds
    asynchronous = sum(one.seconds for one in real.collectives if one.asynchronous)
    assert 0 < hidden <= asynchronous * (1 + 1e-9)


def test_a_shape_is_found_inside_fusions_and_counted_once_in_memory() -> None:
    fused = (
        "%f (a: f32[64]) -> f32[64,2] {\n  %a = f32[64]{0} parameter(0)\n"
        "  %bits = u32[256,2]{1,0} iota(), iota_dimension=0\n"
        '  ROOT %o = f32[64,2]{1,0} custom-call(%a, %bits), custom_call_target="F"\n}\n'
    )
    entry = (
        "  %p = f32[64]{0} parameter(0)\n"
        "  %x = f32[64,2]{1,0} fusion(%p), kind=kLoop, calls=%f\n"
        "  %b = f32[64,2]{1,0} bitcast(%x)\n  ROOT %t = (f32[64,2]{1,0}) tuple(%b)"
    )
    made = program(entry, fused)
    assert [(one.name, str(s)) for one, s in shape_search.with_size(made, 256)] == [
        ("bits", "u32[256,2]")
    ]
    assert shape_search.with_size(made, 128) == ()
    wide = shape_search.written(made, lambda shape: shape.dims == (64, 2))
    assert [one.name for one, _ in wide] == ["x"]
    assert shape_search.written(made, lambda shape: 256 in shape.dims) == ()


def test_float32_logits_of_a_real_program_are_written_twice_at_most(text: str) -> None:
    size = 16 * 20 * 30522 // 2
    wide = shape_search.written(text, lambda shape: shape.dtype == "f32" and shape.size == size)
    computed = shape_search.computed(text, lambda s: s.dtype == "f32" and s.size == size)
    assert 1 <= len(wide) <= 2
    assert len(computed) > len(wide)


def test_an_analysis_is_json(real: Analysis) -> None:
    read = json.loads(json.dumps(real.as_dict()))
    assert read["cycles"] == real.cycles
    assert read["step_seconds"] == real.step_seconds
    assert read["lines"][0]["source"]["line"] == real.lines[0].source.line
    assert read["collectives"][0]["axes"] == list(real.collectives[0].axes)


def test_a_page_shows_all_of_the_step(real: Analysis, tmp_path: Path) -> None:
    rows = tpu_sections.milliseconds(real)
    total = sum(value for row in rows.values() for value in row.values())
    assert total == pytest.approx(1e3 * real.step_seconds)
    whole = Page("tiny on v5e-16")
    sections.add(whole, tpu_sections.of_analysis(real))
    whole.save(epath.Path(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 1
    line = "model/encoder.py:65 &gt; model/layers.py:44"
    for shown in ("feed-forward", line, "<td>reduce-scatter over ", "<td>scatter<"):
        assert shown in text


def test_a_gpu_is_refused() -> None:
    with pytest.raises(UserError, match="NVIDIA H200: only the TPU compiler estimates cycles"):
        analyse(program(PARAMETER), mesh_shape=MESH, accelerator=BY_DEVICE_KIND["NVIDIA H200"])


def test_collectives_of_a_kind_and_axes_stand_in_one_row() -> None:
    lines = "".join(f"  %c{n} = f32[256]{{0}} all-reduce(%p), {REDUCE}\n" for n in (1, 2, 3))
    (one,) = estimate(PARAMETER + lines).collectives
    assert (one.runs, one.bytes, one.devices) == (3, 3 * 1024, 4)
    assert collectives.total_seconds([]) == 0
