"""Optimized HLO text: what is read of an instruction, and how often it runs."""

import pytest

from bert_jax.aot.hlo import loops, parser
from bert_jax.errors import UserError

SOURCES = """
FileNames
1 "/home/me/bert_jax/bert_jax/model/encoder.py"
2 "/home/me/bert_jax/bert_jax/model/layers.py"
3 "/home/me/bert_jax/venv/lib/python3.11/site-packages/optax/base.py"

FunctionNames
1 "Layer.__call__"
2 "Dense.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=80 end_line=80 column=18 end_column=18}
2 {file_name_id=2 function_name_id=2 line=44 end_line=44 column=15 end_column=15}
3 {file_name_id=3 function_name_id=2 line=9 end_line=9 column=15 end_column=15}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=2}

"""


def cost(cycles: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'


def module(*, entry: str, others: str = "", sources: str = "\n") -> parser.Module:
    """A program of these lines; `others` are whole computations."""
    head = f"HloModule jit_step, is_scheduled=true\n{sources}"
    return parser.parse(f"{head}{others}\nENTRY %main (p: f32[2]) -> f32[2] {{\n{entry}\n}}\n")


def total(program: parser.Module) -> int:
    runs = loops.executions(program)
    return sum(times * (one.cycles or 0) for _, one, times in runs.counts(lambda _: True))


@pytest.mark.parametrize(
    ("text", "dims", "size"),
    [
        ("f32[64,128]{1,0:T(8,128)}", [(64, 128)], 4 * 64 * 128),
        ("bf16[2,3]{1,0:T(8,128)(2,1)S(1)}", [(2, 3)], 12),
        ("pred[]{:T(512)}", [()], 1),
        ("s4[6]{0:T(128)}", [(6,)], 3),
        ("f8e4m3fn[10]{0}", [(10,)], 10),
        ("f32[<=8,2]{1,0}", [(8, 2)], 64),
        ("(f32[2]{0}, /*index=1*/u32[]{:S(2)}, (s8[3]{0}, token[]))", [(2,), (), (3,), ()], 15),
    ],
)
def test_a_type_has_shapes_and_bytes(text: str, dims: list, size: int) -> None:
    program = module(entry=f'  ROOT %x = {text} custom-call(), custom_call_target="F"')
    assert [shape.dims for shape in program.entry.root.shapes] == dims
    assert program.entry.root.bytes == size


def test_an_instruction_says_what_its_line_says() -> None:
    line = (
        "  ROOT %fusion.3 = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, f32[8]{0:T(128)}) "
        "fusion(%p.1, /*index=1*/%copy-done.2), kind=kOutput, calls=%fused.1, "
        "output_to_operand_aliasing={{1}: (0, {})}, "
        "metadata={op_name=\"state[\\'params\\']/dot, general\" stack_frame_id=2}, " + cost(1905)
    )
    one = module(entry=line).entry.root
    assert (one.name, one.opcode, one.root) == ("fusion.3", "fusion", True)
    assert one.operands == ("p.1", "copy-done.2")
    assert one.called == {"calls": ("fused.1",)}
    assert one.cycles == 1905
    assert one.op_name == r"state[\'params\']/dot, general"
    assert one.attribute("kind") == "kOutput"
    assert one.attribute("output_to_operand_aliasing") == "{{1}: (0, {})}"
    assert one.attribute("absent") == ""
    assert [shape.memory for shape in one.shapes] == [1, 0]


def test_the_largest_number_is_no_estimate() -> None:
    line = f"  ROOT %x = f32[2]{{0}} fusion(%p), kind=kCustom, calls=%f, {cost(2**63 - 1)}"
    assert module(entry=line).entry.root.cycles is None


@pytest.mark.parametrize("shift", [0, 1])
def test_frames_are_listed_from_inside_out(shift: int) -> None:
    """Whether a text numbers callers from one more, as libtpu 0.0.42 does, or as they are."""
    sources = SOURCES
    if not shift:
        for caller in (1, 2):
            sources = sources.replace(f"parent_frame_id={caller}", f"parent_frame_id={caller - 1}")
    line = '  ROOT %x = f32[2]{0} add(%a, %b), metadata={op_name="jit(f)/add" stack_frame_id=3}'
    program = module(entry=line, sources=sources)
    stack = program.stack(program.entry.root)
    assert [(frame.line, frame.function) for frame in stack] == [
        (9, "Dense.__call__"),
        (80, "Layer.__call__"),
    ]
    assert [frame.within("bert_jax") for frame in stack] == [None, "model/encoder.py"]


def test_a_fusion_without_a_source_has_that_of_its_root() -> None:
    fused = (
        "%fused (a: f32[2]) -> f32[2] {\n"
        "  %a = f32[2]{0} parameter(0)\n"
        '  ROOT %m = f32[2]{0} multiply(%a, %a), metadata={op_name="f/mul" stack_frame_id=2}\n}\n'
    )
    entry = "  ROOT %x = f32[2]{0} fusion(%p), kind=kLoop, calls=%fused"
    program = module(entry=entry, others=fused, sources=SOURCES)
    assert [frame.line for frame in program.stack(program.entry.root)] == [44, 80]
    assert program.op_name(program.entry.root) == "f/mul"


def test_a_source_of_an_older_text_is_read() -> None:
    line = (
        "  ROOT %x = f32[2]{0} add(%a, %b), "
        'metadata={op_name="f" source_file="/src/bert_jax/model/heads.py" source_line=98}'
    )
    program = module(entry=line)
    (frame,) = program.stack(program.entry.root)
    assert (frame.within("bert_jax"), frame.line) == ("model/heads.py", 98)


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(UserError, match="no ENTRY"):
        parser.parse("Traceback (most recent call last):\n")


# A loop as libtpu leaves it: no trip count, state passed through copies, the limit widened into the
# state, from where the condition reads it.
BODY = """%body{n} (s: (s32[], f32[2], s32[])) -> (s32[], f32[2], s32[]) {{
  %s{n} = (s32[]{{:T(128)}}, f32[2]{{0}}, s32[]) parameter(0)
  %i{n} = s32[]{{:T(128)}} get-tuple-element(%s{n}), index=0
  %x{n} = f32[2]{{0}} get-tuple-element(%s{n}), index=1
  %limit{n} = s32[] get-tuple-element(%s{n}), index=2
  %copied{n} = s32[] copy(%i{n})
  %one{n} = s32[] constant({step})
  %next{n} = s32[] add(%copied{n}, %one{n})
  {inside}
  %y{n} = f32[2]{{0}} fusion(%x{n}), kind=kLoop, calls=%f, {cost}
  ROOT %r{n} = (s32[], f32[2], s32[]) tuple(%next{n}, %y{n}, %limit{n})
}}
%condition{n} (s: (s32[], f32[2], s32[])) -> pred[] {{
  %cs{n} = (s32[], f32[2], s32[]) parameter(0)
  %ci{n} = s32[] get-tuple-element(%cs{n}), index=0
  %cl{n} = s32[] {limit}
  ROOT %less{n} = pred[] compare({sides}), direction={direction}
}}
"""
WHILE = """  %zero{n} = s32[] constant({start})
  %begin{n} = s32[]{{:T(128)}} copy(%zero{n})
  %top{n} = s32[] constant({most})
  %state{n} = (s32[], f32[2], s32[]) tuple(%begin{n}, %zero{n}, %top{n})
  %loop{n} = (s32[], f32[2], s32[]) while(%state{n}), condition=%condition{n}, body=%body{n}"""
IN_STATE = "get-tuple-element(%cs{n}), index=2"


def loop(
    n: int, most: int, *, start: int = 0, step: int = 1, direction: str = "LT", cycles: int = 100,
    inside: str = "", limit: str = IN_STATE, sides: str = "%ci{n}, %cl{n}",
) -> tuple[str, str]:  # fmt: skip
    """(computations, lines that run it) of a loop with this number in its names."""
    body = BODY.format(
        n=n,
        step=step,
        inside=inside,
        cost=cost(cycles),
        direction=direction,
        limit=limit.format(n=n),
        sides=sides.format(n=n),
    )
    return body, WHILE.format(n=n, start=start, most=most)


@pytest.mark.parametrize(
    ("values", "turns"),
    [
        ({"most": 12}, 12),
        ({"most": 12, "limit": "constant(12)"}, 12),
        ({"most": 12, "start": 3, "step": 2}, 5),
        ({"most": 12, "direction": "LE"}, 13),
        ({"most": 0, "start": 12, "step": -1, "direction": "GT"}, 12),
        ({"most": 12, "direction": "GT", "sides": "%cl{n}, %ci{n}"}, 12),  # 12 > i
        ({"most": 12, "direction": "NE"}, 12),
        ({"most": 0, "start": 5}, 0),
    ],
)
def test_a_loop_runs_as_often_as_its_counter_says(values: dict, turns: int) -> None:
    others, lines = loop(1, **values)
    program = module(entry=lines + "\n  ROOT %out = f32[2]{0} copy(%p)", others=others)
    runs = loops.executions(program)
    assert list(runs.trips.values()) == [turns]
    assert total(program) == 100 * turns


def test_nested_loops_multiply_with_the_inner_limit_from_outside() -> None:
    inner, inner_lines = loop(2, 3, cycles=10)
    inner_lines = inner_lines.replace("%top2 = s32[] constant(3)", "%top2 = s32[] copy(%limit1)")
    outer, lines = loop(1, 4, cycles=1000, inside=inner_lines)
    program = module(entry=lines, others=inner + outer)
    assert list(loops.executions(program).trips.values()) == [4, 4]
    assert total(program) == 4 * 1000 + 4 * 4 * 10


def test_a_trip_count_that_the_compiler_wrote_down_counts() -> None:
    others, lines = loop(1, 12)
    lines += ', backend_config={"known_trip_count":{"n":"7"}}'
    assert total(module(entry=lines, others=others)) == 700


def test_an_instruction_on_several_lines_ends_no_computation() -> None:
    """JAX's splash attention writes the settings of its kernel into the program."""
    kernel = (
        '%kernel = f32[2]{0} custom-call(%x1), custom_call_target="tpu_custom_call", '
        'frontend_attributes={kernel_metadata={\n"xprof_metadata":"{\\"block_q\\": 512}"\n}}, '
        f'metadata={{op_name="splash/pallas_call" stack_frame_id=466}}, {cost(20)}'
    )
    others, lines = loop(1, 12, inside=kernel)
    program = module(entry=lines, others=others)
    assert list(loops.executions(program).trips.values()) == [12]
    assert total(program) == 12 * (100 + 20)
    (found,) = [i for i in program.computations["body1"].instructions if i.name == "kernel"]
    assert found.op_name == "splash/pallas_call"


def test_a_step_inside_a_fusion_is_found() -> None:
    others, lines = loop(1, 12)
    others = others.replace(
        "%next1 = s32[] add(%copied1, %one1)",
        "%next1 = s32[] fusion(%copied1, %one1), kind=kLoop, calls=%plus",
    )
    others += (
        "%plus (a: s32[], b: s32[]) -> s32[] {\n  %a = s32[] parameter(0)\n"
        "  %b = s32[] parameter(1)\n  ROOT %c = s32[] add(%a, %b)\n}\n"
    )
    assert total(module(entry=lines, others=others)) == 1200


@pytest.mark.parametrize(
    "change",
    [
        ("%zero1 = s32[] constant(0)", "%zero1 = s32[] parameter(3)"),  # where it starts
        ("add(%copied1, %one1)", "multiply(%copied1, %one1)"),  # how it grows
        ("tuple(%next1, %y1, %limit1)", "tuple(%next1, %y1, %next1)"),  # where it ends
    ],
)
def test_a_loop_without_a_known_end_counts_once_and_says_so(change: tuple[str, str]) -> None:
    others, lines = (text.replace(*change) for text in loop(1, 12))
    program = module(entry=lines, others=others)
    assert list(loops.executions(program).trips.values()) == [None]
    assert total(program) == 100


BRANCH = """%branch{n} (b: f32[2]) -> f32[2] {{
  %b{n} = f32[2]{{0}} parameter(0)
  ROOT %o{n} = f32[2]{{0}} fusion(%b{n}), kind=kLoop, calls=%f, {cost}
}}
"""


@pytest.mark.parametrize(
    "branches",
    [
        "branch_computations={%branch1, %branch2, %branch3}",
        "true_computation=%branch1, false_computation=%branch3",
    ],
)
def test_the_dearest_branch_counts(branches: str) -> None:
    others = "".join(BRANCH.format(n=n, cost=cost(c)) for n, c in ((1, 5), (2, 3), (3, 70)))
    entry = f"  ROOT %c = f32[2]{{0}} conditional(%k, %p, %p), {branches}"
    assert total(module(entry=entry, others=others)) == 70


def test_called_and_asynchronous_computations_run_once_and_fused_ones_not() -> None:
    others = "".join(BRANCH.format(n=n, cost=cost(c)) for n, c in ((1, 5), (2, 30), (3, 1000)))
    entry = f"""  %called = f32[2]{{0}} call(%p), to_apply=%branch1
  %s = ((f32[2]), f32[2], u32[]) async-start(%called), calls=%branch2
  %u = ((f32[2]), f32[2], u32[]) async-update(%s), calls=%branch2
  %d = f32[2]{{0}} async-done(%u), calls=%branch2
  ROOT %x = f32[2]{{0}} fusion(%d), kind=kLoop, calls=%branch3, {cost(200)}"""
    assert total(module(entry=entry, others=others)) == 5 + 30 + 200
