"""What is counted in a program compiled for GPUs: a small one, in the compiler's own words."""

import dataclasses
import json
from typing import Any

import pytest

from bert_jax.aot import compile_report, report_data, report_html, report_sections
from bert_jax.aot.cost import gpu_analysis, held
from bert_jax.aot.cost.gpu_analysis import GpuAnalysis
from bert_jax.aot.cost.memory import GIB, Memory
from bert_jax.aot.gpu_backend import GpuBackend
from bert_jax.aot.hlo import parser
from bert_jax.aot.hlo.sources import Source
from bert_jax.config.config_files import load
from bert_jax.hardware import gpus
from bert_jax.metrics.run_records import strict

MIB = 2**20
TEXT = """HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

FileNames
1 "/bert_jax/model/heads.py"

FunctionNames
1 "word_logits"
2 "class_logits"

FileLocations
1 {file_name_id=1 function_name_id=1 line=5}
2 {file_name_id=1 function_name_id=2 line=6}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}


%triton (p0: bf16[1024,512], p1: bf16[512,1024]) -> bf16[1024,1024] {
  %p0 = bf16[1024,512]{1,0} parameter(0)
  %p1 = bf16[512,1024]{1,0} parameter(1)
  ROOT %dot.1 = bf16[1024,1024]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%wide (p2: bf16[1024,512], p3: f32[512,1024]) -> f32[1024,1024] {
  %p2 = bf16[1024,512]{1,0} parameter(0)
  %up = f32[1024,512]{1,0} convert(%p2)
  %p3 = f32[512,1024]{1,0} parameter(1)
  ROOT %dot.2 = f32[1024,1024]{1,0} dot(%up, %p3), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

ENTRY %main (x: bf16[1024,512], y: bf16[512,1024], z: f32[512,1024], q: bf16[8,128,4,64]) -> (f32[1024,1024]) {
  %x = bf16[1024,512]{1,0} parameter(0)
  %y = bf16[512,1024]{1,0} parameter(1)
  %z = f32[512,1024]{1,0} parameter(2)
  %q = bf16[8,128,4,64]{3,2,1,0} parameter(3)
  %gemm.1 = bf16[1024,1024]{1,0} fusion(%x, %y), kind=kCustom, calls=%triton, metadata={op_name="jit(f)/jvp()/dot" stack_frame_id=1}, backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}
  %gemm.2 = (bf16[1024,1024]{1,0}, s8[4096]{0}) custom-call(%x, %y), custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(f)/jvp()/dot" stack_frame_id=1}, backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %flash = (bf16[8,4,128,64]{3,1,2,0}, f32[8,4,128]{2,1,0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["8", "4", "128", "128"]}}}
  %gemm.3 = f32[1024,1024]{1,0} fusion(%x, %z), kind=kCustom, calls=%wide, metadata={op_name="jit(f)/transpose(jvp())/dot" stack_frame_id=2}, backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}
  %all-reduce-start = f32[1024,1024]{1,0} all-reduce-start(%gemm.3), replica_groups={{0,1,2,3}}, to_apply=%sum
  %all-reduce-done = f32[1024,1024]{1,0} all-reduce-done(%all-reduce-start)
  ROOT %tuple = (f32[1024,1024]{1,0}) tuple(%all-reduce-done)
}
"""  # noqa: E501
PRODUCT = 2 * 1024 * 1024 * 512
SCORES = 2 * 8 * 4 * 128 * 128 * 64


def analysed(name: str, devices: int = 4, text: str = TEXT) -> GpuAnalysis:
    mesh = {"slice": 1, "data": devices, "fsdp": 1, "tensor": 1}
    return gpu_analysis.analyse(text, mesh_shape=mesh, hosts=gpus.find(name))


def test_kernels_are_counted_by_library_and_name() -> None:
    found = {(k.library, k.name): k.runs for k in analysed("h100-4").kernels}
    assert found == {
        ("Triton", "matrix product"): 2,
        ("cuBLASLt", "__cublas$lt$matmul"): 1,
        ("cuDNN", "__cudnn$fmhaSoftmax"): 1,
    }


def test_products_are_counted_by_type_and_a_wide_one_is_an_error() -> None:
    found = analysed("h100-4")
    by_type = {total.dtype: (total.runs, total.flops) for total in found.products}
    assert by_type == {"bf16": (4, 2 * PRODUCT + 2 * SCORES), "f32": (1, PRODUCT)}
    assert found.wide == {"model/heads.py:6 backward": PRODUCT}
    assert found.by_design == {}


@pytest.mark.parametrize(
    ("frame", "operation", "is_meant"),
    [
        (1, "transpose(jvp())/dot", True),
        (1, "jvp()/dot", False),
        (2, "transpose(jvp())/dot", False),
        (2, "jvp()/dot", False),
    ],
)
def test_the_gradient_of_the_logits_alone_is_in_float32_by_design(
    frame: int, operation: str, is_meant: bool
) -> None:
    given = 'transpose(jvp())/dot" stack_frame_id=2'
    assert TEXT.count(given) == 1
    one = report(text=TEXT.replace(given, f'{operation}" stack_frame_id={frame}'))
    said, (phase,) = report_sections.render(one), compile_report.as_dict(one)["phases"]
    share = f"{PRODUCT / one.phases[0].analysis.model_flops:.2%}"
    meant = f"float32 by design: the gradient of the logits, {share} of the model's operations"
    assert (meant in said) == is_meant
    assert ("ERROR of bert-jax" in said) != is_meant
    assert bool(phase["analysis"]["by_design"]) == is_meant
    assert bool(phase["analysis"]["wide"]) != is_meant


def test_the_bound_is_what_the_gpu_and_its_links_can_do_at_most() -> None:
    found, row = analysed("h100-4"), gpus.find("h100-4").accelerator
    flops = (2 * PRODUCT + 2 * PRODUCT + 2 * SCORES) / row.bf16_flops  # TF32 at half the rate
    assert found.kernel_seconds >= flops
    assert row.ici_bandwidth
    sent = 2 * 3 / 4 * 4 * MIB / (row.ici_bandwidth / 2)
    assert found.exposed_seconds == pytest.approx(sent)
    assert found.bound_seconds == pytest.approx(found.kernel_seconds + sent)
    assert found.step_seconds is None


def test_between_hosts_each_gpu_sends_its_part_of_what_the_hosts_exchange() -> None:
    (traffic,) = analysed("2xh100-2").collectives
    row = gpus.find("h100-2").accelerator
    assert traffic.network == "dcn"
    assert traffic.sent == 2 * 1 / 2 * 4 * MIB / 2
    assert row.dcn_bandwidth
    assert traffic.seconds == pytest.approx(traffic.sent / row.dcn_bandwidth)
    (rack,) = analysed("2xgb200-2").collectives
    assert rack.network == "ici"


def test_without_a_known_network_there_is_no_bound() -> None:
    assert analysed("2xrtx4090-2").bound_seconds is None
    assert analysed("rtx4090-4").bound_seconds


def test_what_is_held_at_the_peak_is_listed_by_source_line() -> None:
    """The result of the step takes the place of an argument and does not count."""
    held = {f"{h.source.line} {h.source.direction}": h.bytes for h in analysed("h100-4").held}
    assert held["model/heads.py:6 backward"] == 4 * MIB


IN_PLACE = """HloModule step, is_scheduled=true

%halved (a: f32[1024,1024], b: f32[1024]) -> (f32[1024], f32[2,512,1024]) {
  %a = f32[1024,1024]{1,0} parameter(0)
  %b = f32[1024]{0} parameter(1)
  %rows = f32[1024,1024]{1,0} broadcast(%b), dimensions={1}
  %sum = f32[1024,1024]{1,0} add(%a, %rows)
  %parts = f32[2,512,1024]{2,1,0} bitcast(%sum)
  %total = f32[1024]{0} reduce(%sum, %b), dimensions={0}, to_apply=%add
  ROOT %both = (f32[1024]{0}, f32[2,512,1024]{2,1,0}) tuple(%total, %parts)
}

ENTRY %main (x: bf16[1024,1024], y: f32[1024]) -> f32[] {
  %x = bf16[1024,1024]{1,0} parameter(0)
  %y = f32[1024]{0} parameter(1)
  %scores = f32[1024,1024]{1,0} convert(%x)
  %halves = (f32[1024]{0}, f32[2,512,1024]{2,1,0}) fusion(%scores, %y), kind=kInput, calls=%halved
  %half = f32[2,512,1024]{2,1,0} get-tuple-element(%halves), index=1
  ROOT %last = f32[] custom-call(%half, KEPT), custom_call_target="f"
}
"""


@pytest.mark.parametrize(
    ("read_again", "moved", "expected"),
    [(False, False, 4 * MIB + 4096), (True, False, 8 * MIB + 4096), (False, True, 8 * MIB + 4096)],
    ids=["dies there", "is read later", "elements in other places"],
)
def test_a_result_takes_the_place_of_an_operand(read_again, moved, expected) -> None:
    text = IN_PLACE.replace("KEPT", "%scores" if read_again else "%y")
    text = text.replace("bitcast(%sum)", "reverse(%sum)" if moved else "bitcast(%sum)")
    found = held.at_peak(parser.parse(text), text)
    assert sum(line.bytes for line in found) == expected


def report(
    fits: bool = True, computes_in_16_bits: bool = True, text: str = TEXT
) -> report_data.Report:
    hosts, config = gpus.find("2xh100-2"), load("base")
    memory = Memory(GIB, GIB, 1, (3 if fits else 90) * GIB, 0, hosts.usable_bytes, fits)
    phase = report_data.PhaseReport(
        0, config.phases[0], memory, (), analysed("2xh100-2", text=text), 1.0, 1e12, 4e15,
        "attention: XLA", computes_in_16_bits,
    )  # fmt: skip
    mesh = {"slice": 1, "data": 4, "fsdp": 1, "tensor": 1}
    return report_data.Report("base", config, hosts, mesh, "the compiler", (phase,))


def test_the_report_of_gpus_has_lower_bounds_and_no_hours() -> None:
    said = report_sections.render(report())
    for part in (
        "base on 2xh100-2: 4 GPUs (NVIDIA H100 80GB HBM3), NVLink within a host, 2 hosts",
        "5.00 GiB of 59.33 GiB, fits",
        "75% of 79.11 GiB",
        "a lower bound, no estimate; less where arrays stay in the L2 cache)",
        "Attention: XLA",
        "cuDNN: __cudnn$fmhaSoftmax",
        "ERROR of bert-jax",
        "model/heads.py:6 backward",
        "between hosts",
        "hours are not estimated",
        # What is started is awaited at once: nothing overlaps it.
        "all-reduce over data, asynchronous",
    ):
        assert part in said
    assert "chip" not in said
    assert "overlap" not in said
    assert "DOES NOT FIT" in report_sections.render(report(fits=False))


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("h100-1", ""),
        ("2xh100-1", ""),
        ("2xh100-8", "NVLink within a host"),
        ("gb200-4", "NVLink within a host"),
        ("2xgb200-1", "NVLink within 2 hosts"),
        ("36xgb200-4", "NVLink within 18 hosts"),
    ],
)
def test_links_are_named_within_the_hosts_that_they_join(name: str, links: str) -> None:
    backend, hosts = GpuBackend(), gpus.find(name)
    said = backend.hardware(hosts)
    assert (said.partition("), ")[2], "links" in backend.kind(hosts)) == (links, bool(links))


def with_analysis(made: report_data.Report, **changes: Any) -> str:
    (phase,) = made.phases
    assert isinstance(phase.analysis, GpuAnalysis)
    analysis = dataclasses.replace(phase.analysis, **changes)
    phases = (dataclasses.replace(phase, analysis=analysis),)
    return report_sections.render(dataclasses.replace(made, phases=phases))


def test_what_attention_holds_at_the_peak_is_one_figure() -> None:
    lines = [f"ops/attention/xla.py:{number}" for number in (68, 79)]
    lines.append("model/attention.py:89 > ops/split_qkv.py:15")
    arrays = [held.LineArrays(Source("attention", "forward", line), 3, GIB) for line in lines]
    said = with_analysis(report(), held=tuple(arrays))
    assert "Attention: XLA; its lines hold 2.00 GiB at the peak\n" in said
    assert "its lines" not in with_analysis(report(), held=())


def test_operations_too_few_to_be_shown_are_not() -> None:
    kernels = analysed("2xh100-2").kernels
    few = [dataclasses.replace(one, flops=128) for one in kernels]
    said = with_analysis(report(), kernels=tuple(few))
    assert "e-" not in said.partition("kernel\n")[2].partition("matrix products")[0]


def test_the_json_and_the_page_have_the_same(tmp_path) -> None:
    plain = json.loads(json.dumps(strict(compile_report.as_dict(report())), allow_nan=False))
    (phase,) = plain["phases"]
    assert plain["topology"]["hosts"] == 2
    assert plain["compiler"] == "the compiler"
    assert plain["estimated_hours"] is None
    assert phase["estimated_step_seconds"] is None
    assert phase["at_least_step_seconds"] > 0
    assert plain["topology"]["links"] == "NVLink"
    assert [one["network"] for one in phase["analysis"]["collectives"]] == ["between hosts"]
    assert list(phase["analysis"]["wide"]) == ["model/heads.py:6 backward"]
    report_html.save(report(), str(tmp_path / "page.html"), "--config=base")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "fmhaSoftmax" in page
    assert "bert-jax pretrain --config=base" in page


def test_products_in_float32_are_no_mistake_where_that_is_asked_for() -> None:
    asked = report(computes_in_16_bits=False)
    assert "ERROR of bert-jax" not in report_sections.render(asked)
    (phase,) = compile_report.as_dict(asked)["phases"]
    assert phase["analysis"]["wide"] == {}


def test_rows_are_not_divided_over_the_tensor_axis() -> None:
    whole = report()
    for mesh, rows in (((4, 1, 1), 64), ((2, 1, 2), 128), ((1, 2, 2), 128)):
        axes = {"slice": 1, **dict(zip(("data", "fsdp", "tensor"), mesh, strict=True))}
        said = report_sections.render(dataclasses.replace(whole, mesh=axes))
        assert f"of 256 rows of 128 tokens, {rows} per GPU at a time" in said
