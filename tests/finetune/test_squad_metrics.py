"""The official rules of SQuAD, equal to those of transformers on random and adversarial answers.

`make .venv/peer` installs the transformers that has them; `python tests/finetune/
test_squad_metrics.py` writes the golden from it.
"""

import json
import lzma
import os
from pathlib import Path

import pytest
from squad_cases import GROUP, THRESHOLDS, peer_scores, squad_cases

from bert_jax.errors import UserError
from bert_jax.finetune.tasks import squad_metrics
from bert_jax.finetune.tasks.labeled_examples import Question

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/goldens/squad_scores.json.xz"
PEER = Path(os.environ.get("BERT_JAX_PEER", ROOT / ".venv/peer"))


def own_scores() -> tuple[list[float], list[float], list[dict[str, float]]]:
    """What `peer_scores` returns, computed here."""
    cases = squad_cases()
    pairs = [squad_metrics.best(q, cases.predictions[q.id]) for q in cases.questions]
    groups = []
    for start in range(0, len(cases.questions), GROUP):
        chosen = cases.questions[start : start + GROUP]
        null = {q.id: cases.null[q.id] for q in chosen}
        groups.append(squad_metrics.scores(chosen, cases.predictions))
        groups += [
            squad_metrics.scores(chosen, cases.predictions, null, threshold=limit)
            for limit in THRESHOLDS
        ]
    return [exact for exact, _ in pairs], [f1 for _, f1 in pairs], groups


@pytest.mark.slow
def test_ten_thousand_answers_score_as_in_transformers() -> None:
    exact, f1, groups = json.loads(lzma.decompress(GOLDEN.read_bytes()))
    own_exact, own_f1, own_groups = own_scores()
    assert own_exact == exact
    assert own_f1 == f1
    assert len(own_groups) == len(groups)
    for number, (own, theirs) in enumerate(zip(own_groups, groups, strict=True)):
        # transformers gives a best threshold over null scores of 0, too.
        given = number % (1 + len(THRESHOLDS)) > 0
        assert own == {k: v for k, v in theirs.items() if given or not k.startswith("best_")}
    assert 0.1 < sum(exact) / len(exact) < 0.9  # neither all right nor all wrong


@pytest.mark.nightly
@pytest.mark.processes
def test_the_golden_is_what_transformers_gives() -> None:
    if not PEER.is_dir():
        pytest.skip("`make .venv/peer` installs the transformers that has these rules")
    assert peer_scores(PEER) == json.loads(lzma.decompress(GOLDEN.read_bytes()))


def test_every_question_needs_a_prediction() -> None:
    questions = [Question(name, "", "", (("Ada", 0),), False, 1) for name in ("q1", "q2")]
    with pytest.raises(UserError, match="no prediction for 1 question; the first is 'q2'"):
        squad_metrics.scores(questions, {"q1": "Ada"})
    with pytest.raises(UserError, match="no questions to score"):
        squad_metrics.scores([], {})


if __name__ == "__main__":
    GOLDEN.write_bytes(lzma.compress(json.dumps(peer_scores(PEER)).encode(), preset=9))
