"""Windows of questions and answers from logits."""

import itertools

import numpy as np
import pytest
from framed import framed

from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks.labeled_examples import Question
from bert_jax.finetune.tasks.qa import Lengths, Window, predict, windows

CONTEXT = "Hello World! Naïve café, 3.14 (ÜBER) hello tab x y and zero width inside"


def question(answer: str | None, context: str = CONTEXT, asked: str = "hello world") -> Question:
    answers = () if answer is None else ((answer, context.index(answer)),)
    return Question("q", asked, context, answers, answer is None, 1)


def text_of(window: Window, first: int, last: int, context: str = CONTEXT) -> str:
    """The characters of the context from one position of a window to another."""
    start, end = window.spans[[first - window.first, last - window.first], [0, 1]]
    return context[start:end]


def test_a_window_is_cls_question_sep_context_sep(tokenizer: Tokenizer) -> None:
    (window,) = windows([question("Naïve")], tokenizer)
    ids, special = window.token_ids.tolist(), tokenizer.special
    asked, found = (one.tolist() for one in tokenizer.encode_batch(["hello world", CONTEXT]))
    assert ids == [special.cls, *asked, special.sep, *found, special.sep]
    assert window.segment_ids.tolist() == [0] * (len(asked) + 2) + [1] * (len(found) + 1)
    assert window.first == len(asked) + 2
    assert window.central.all()
    doubled = framed(tokenizer, between="[SEP] [SEP]", second=0)
    (roberta,) = windows([question("Naïve")], doubled)
    assert roberta.token_ids.tolist()[window.first - 1 :][:2] == [special.sep] * 2
    assert not roberta.segment_ids.any()


@pytest.mark.parametrize("answer", ["Naïve", "Naïve café", "3.14", "ÜBER", "Hello", "inside"])
def test_the_target_holds_the_answers_own_characters(tokenizer: Tokenizer, answer: str) -> None:
    """Lower-cased, without accents in the pieces; with both in the answer."""
    (window,) = windows([question(answer)], tokenizer)
    assert text_of(window, *window.target) == answer


def test_a_long_context_is_read_in_windows_a_stride_apart(tokenizer: Tokenizer) -> None:
    lengths = Lengths(row=16, stride=4)
    made = windows([question("café")], tokenizer, lengths)
    (whole,) = windows([question("café")], tokenizer)
    context = whole.token_ids[whole.first : -1]
    room = 16 - whole.first - 1
    assert len(made) > 3
    for number, window in enumerate(made):
        part = window.token_ids[window.first : -1]
        np.testing.assert_array_equal(part, context[number * 4 :][:room])
        assert len(window.token_ids) <= 16
        inside = whole.target[0] >= whole.first + number * 4
        inside &= whole.target[1] < whole.first + number * 4 + len(part)
        expected = tuple(i - number * 4 for i in whole.target) if inside else (0, 0)
        assert window.target == expected
    shown = np.zeros(len(context), int)
    for number, window in enumerate(made):
        shown[number * 4 :][: len(window.central)] += window.central
    np.testing.assert_array_equal(shown, 1)  # every token is in one window for good
    assert len({window.target for window in made}) > 1


@pytest.mark.parametrize("stride", [3, 4])  # with 4 there are ties
def test_the_central_window_is_that_of_run_squad(tokenizer: Tokenizer, stride: int) -> None:
    """`_check_is_max_context`, spelled out."""
    made = windows([question(None)], tokenizer, Lengths(row=14, stride=stride))
    spans = [(number * stride, len(window.central)) for number, window in enumerate(made)]
    for position in range(spans[-1][0] + spans[-1][1]):
        scores = {
            number: min(position - start, start + length - 1 - position) + 0.01 * length
            for number, (start, length) in enumerate(spans)
            if start <= position < start + length
        }
        best = max(scores, key=lambda number: (scores[number], -number))
        for number in scores:
            assert made[number].central[position - spans[number][0]] == (number == best)


def test_a_stride_longer_than_a_window_leaves_nothing_out(tokenizer: Tokenizer) -> None:
    (whole,) = windows([question(None)], tokenizer)
    made = windows([question(None)], tokenizer, Lengths(row=14, stride=100))
    np.testing.assert_array_equal(np.concatenate([one.spans for one in made]), whole.spans)


def test_labels_may_be_missing(tokenizer: Tokenizer) -> None:
    unlabelled = Question("q", "hello", CONTEXT, (), False, 1)
    assert windows([unlabelled], tokenizer)[0].target is None
    assert windows([question(None)], tokenizer)[0].target == (0, 0)
    no_piece = Question("q", "hello", "hello \u200b world", (("\u200b", 6),), False, 1)
    assert windows([no_piece], tokenizer)[0].target is None


def test_long_questions_and_empty_contexts_have_windows(tokenizer: Tokenizer) -> None:
    long = Question("q", "hello " * 100, "hello world", (), False, 1)
    (window,) = windows([long], tokenizer)
    assert (window.first, window.question_cut) == (66, True)
    (empty,) = windows([Question("q", "hello", "", (), True, 1)], tokenizer)
    assert (len(empty.spans), empty.target, empty.question_cut) == (0, (0, 0), False)
    answers = predict(long, [empty], [np.zeros((len(empty.token_ids), 2))], no_answer=False)
    assert (answers.text, answers.best, answers.null_score) == ("", (), np.inf)
    with pytest.raises(UserError, match="rows of 66 tokens, stride 128: no room for a context"):
        windows([long], tokenizer, Lengths(row=66))


def test_the_best_answers_are_those_of_a_search_over_all_spans(tokenizer: Tokenizer) -> None:
    asked = question("café")
    drawn = np.random.default_rng(7)
    for row in (16, 64):
        made = windows([asked], tokenizer, Lengths(row=row, stride=5))
        logits = [drawn.normal(size=(len(window.token_ids), 2)) for window in made]
        every: dict[str, float] = {}
        for window, values in zip(made, logits, strict=True):
            size = len(window.spans)
            for first, last in itertools.product(range(size), repeat=2):
                if window.central[first] and first <= last < first + 6:
                    start, end = window.first + first, window.first + last
                    text = text_of(window, start, end)
                    score = values[start, 0] + values[end, 1]
                    every[text] = max(score, every.get(text, -np.inf))
        expected = sorted(every.items(), key=lambda pair: -pair[1])[:20]
        found = predict(asked, made, logits, no_answer=True, n_best=200, max_answer=6)
        assert [(a.text, a.score) for a in found.best[:20]] == expected
        assert all(asked.context[a.start : a.end] == a.text for a in found.best)
        null = min(values[0].sum() for values in logits)
        assert found.null_score == pytest.approx(null - expected[0][1])
        assert len(predict(asked, made, logits, no_answer=True, n_best=6).best) == 6


def test_no_answer_wins_above_the_threshold(tokenizer: Tokenizer) -> None:
    asked = question("café")
    (window,) = windows([asked], tokenizer)
    logits = np.full((len(window.token_ids), 2), -9.0)
    first, last = window.target
    logits[first, 0], logits[last, 1] = 2.0, 1.0
    logits[0] = 2.0  # 4 for no answer, 3 for the answer
    assert predict(asked, [window], [logits], no_answer=False).text == "café"
    refused = predict(asked, [window], [logits], no_answer=True)
    assert (refused.text, refused.null_score) == ("", 1.0)
    assert refused.best[0].probability == pytest.approx(1 / (1 + np.e), rel=1e-3)
    assert predict(asked, [window], [logits], no_answer=True, threshold=1.0).text == "café"
    alone = predict(asked, [window], [logits], no_answer=False, n_best=1)
    assert (len(alone.best), alone.best[0].probability) == (1, 1.0)
