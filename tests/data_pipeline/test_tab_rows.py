"""Tables of tabs: quotes that are text, and quotes that enclose values."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_jax.api.hard_negatives import _tsv
from bert_jax.data_pipeline.sources.tab_rows import fits_tab_row, tab_row, tab_rows
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.leaderboard import table_of
from bert_jax.finetune.tasks.table import read_rows

WIDTH = 3
PARTS = st.sampled_from(['"', '""', ' "', "a", "b c", " ", "\u2028", "\x85", "\x0b", "é"])
TEXTS = st.lists(PARTS, min_size=1, max_size=8).map("".join)
ROWS = st.lists(st.lists(TEXTS, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=4)
ENDS = ["abc\n", "abc\r", "a\nb", "a\r\nb", "a\tb", "\n"]


@settings(max_examples=500, deadline=None)
@given(ROWS)
@example([['"Yes"', 'he typed "" twice', "x"]])
@example([["a", '""', "b\u2028c"], ['"a', "b", 'c"']])
def test_every_row_that_is_written_is_read_as_it_was(rows: list[list[str]]) -> None:
    assert [values for _, values in tab_rows(map(tab_row, rows), WIDTH)] == rows


def test_quotes_stay_as_they_are_where_they_can() -> None:
    assert tab_row(['"Yes"', 'so "he" said']) == '"Yes"\tso "he" said'
    assert tab_row(['"Yes"', 'a "" b']) == '"""Yes"""\t"a """" b"'


def test_lines_after_a_complete_row_are_not_lost() -> None:
    rows = [values for _, values in tab_rows(iter(['""\t5"\tz', 'oops"']), 3)]
    assert rows == [['""', '5"', "z"], ['oops"']]


def test_a_long_value_may_be_enclosed() -> None:
    values = ["x" * 200_000 + '""', '"y"']
    assert [found for _, found in tab_rows(iter([tab_row(values)]), 2)] == [values]


@pytest.mark.parametrize("text", ENDS)
def test_a_line_end_or_a_tab_is_refused_wherever_it_stands(text: str) -> None:
    assert not fits_tab_row(text)
    problem = "pairs.jsonl: row 7: its positive has a tab or a line end"
    with pytest.raises(UserError, match=problem):
        _tsv(Path("pairs.jsonl"), ["anchor", "positive"], [(7, ["x", text])])
    with pytest.raises(UserError, match="it has a tab or a line end"):
        table_of([text], ["yes"])


def test_a_table_of_hard_negatives_holds_other_ends(tmp_path: Path) -> None:
    rows = [(1, ["a\u2028b", 'he typed "" twice']), (2, ["c\x85", '"d"'])]
    out = tmp_path / "out.tsv"
    out.write_text(_tsv(out, ["anchor", "positive"], rows), "utf-8")
    found, _ = read_rows(out, ["anchor", "positive"])
    assert [[*values.values()] for _, values in found] == [texts for _, texts in rows]
