"""The list of faults fits the tree: each can be put into its file, and makes another program."""

import ast
from collections import Counter
from pathlib import Path

import mutants
import pytest
from mutant_drawing import PACKAGES, draw
from mutant_list import Fault, MutantError, ordered_tests, read

FAULTS = read()


def test_there_are_enough_of_both_kinds_in_every_folder() -> None:
    counts = Counter(fault.is_drawn for fault in FAULTS)
    assert counts[True] == 40
    assert counts[False] >= 20
    assert {fault.room.split("/")[0] for fault in FAULTS} == set(PACKAGES)


def test_every_fault_fits_its_file_once_and_can_be_read() -> None:
    for fault in FAULTS:
        text = (mutants.ROOT / fault.path).read_text(encoding="utf-8")
        changed = fault.put_into(text)
        assert changed != text, fault.name
        ast.parse(changed, fault.name)


def fault_of(old: str, new: str) -> Fault:
    return Fault("hand-1", "a/b.py", "", (old,), (new,), "")


def test_a_fault_is_put_in_at_any_depth() -> None:
    assert fault_of("a = 1", "a = 2").put_into("if b:\n    a = 1\n") == "if b:\n    a = 2\n"


@pytest.mark.parametrize("text", ["b = 1\n", "a = 1\na = 1\n"])
def test_a_fault_that_does_not_fit_says_so_in_a_line(text: str) -> None:
    with pytest.raises(
        MutantError, match=r"^hand-1: its lines are in a/b\.py [02] times, not once"
    ):
        fault_of("a = 1", "a = 2").put_into(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@ hand-1 a.py\n-a\n+b\n", "not a name, a file and a kind"),
        ("@ hand-1 a.py kind\n+b\n", "hand-1 is not lines after"),
        ("@ hand-1 a.py kind\n-a\nb\n", "hand-1 is not lines after"),
        ("@ hand-1 a.py kind\n-a\n" * 2, "hand-1 is there twice"),
    ],
)
def test_a_list_that_cannot_be_read_says_where(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(MutantError, match=said):
        read(tmp_path / "list.txt")


def write_tree(root: Path, files: dict[str, str]) -> None:
    """Writes files of a repository whose `launch` is imported as `bert_jax.launch`."""
    (root / "bert_jax").mkdir()
    (root / "bert_jax" / "launch").symlink_to("../launch")
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_tests_that_import_a_file_come_first(tmp_path: Path) -> None:
    files = {
        "launch/__init__.py": "",
        "launch/a.py": "",
        "launch/c.py": "",
        "launch/b.py": "from bert_jax.launch import a",
        "tests/support/helper.py": "def f():\n    from bert_jax.launch.a import x",
        "tests/test_1.py": "import bert_jax.launch",
        "tests/test_2.py": "import bert_jax.launch.b",
        "tests/test_3.py": "import helper, bert_jax.launch.b",
        "tests/test_4.py": "from bert_jax.launch.a import x",
        "tests/project/test_mutants.py": "from bert_jax.launch.a import x",
    }
    write_tree(tmp_path, files)
    room, rest = ordered_tests(tmp_path, "launch/a.py")
    assert room == ["tests/test_4.py", "tests/test_3.py"]
    assert rest == ["tests/test_2.py", "tests/test_1.py"]
    assert ordered_tests(tmp_path, "launch/c.py")[0][0] == "tests/test_1.py"


def test_the_folder_that_mirrors_a_room_comes_before_other_tests_that_import_it(
    tmp_path: Path,
) -> None:
    files = {
        "launch/__init__.py": "",
        "launch/a.py": "",
        "launch/b.py": "from bert_jax.launch import a",
        "tests/cli/test_near.py": "from bert_jax.launch import a",
        "tests/launch/test_far.py": "import bert_jax.launch.b",
        "tests/launch/test_none.py": "",
        "tests/cli/test_none.py": "",
    }
    write_tree(tmp_path, files)
    room, rest = ordered_tests(tmp_path, "launch/a.py")
    assert room == [
        "tests/launch/test_far.py",
        "tests/launch/test_none.py",
        "tests/cli/test_near.py",
    ]
    assert rest == ["tests/cli/test_none.py"]


def result(name: str, verdict: str, why: str = "") -> mutants.Result:
    return mutants.Result(Fault(name, "a/b.py", "", ("a",), ("b",), why), verdict)


@pytest.mark.parametrize(
    ("caught", "escaped", "enough"),
    [(19, mutants.OVER_TIME, True), (19, mutants.SURVIVED, False), (18, mutants.EXPLAINED, False)],
)
def test_too_few_caught_is_a_failure(caught: int, escaped: str, enough: bool) -> None:
    results = [result(f"hand-{n}", mutants.CAUGHT if n < caught else escaped) for n in range(20)]
    lines, good = mutants.summary(results)
    assert good is enough
    assert f"by hand: {caught / 20:.0%} of 20 caught" in lines[20 + 1]


def test_a_seed_draws_the_same_faults(tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "launch" / "a.py").write_text(
        '"""Text of 1 < 2."""\n\n\ndef one(a: int) -> int:\n    del a\n    return a < 1 and a + 2\n'
    )
    drawn = list(draw(tmp_path, 3, 5))
    assert drawn == list(draw(tmp_path, 3, 5))
    assert drawn[1] == "-return a < 1 and a + 2"  # the only line that has anything to change
    assert drawn[0].startswith("@ drawn-01 launch/a.py ")
    assert len(drawn) == 4
