"""The end of a phase: all processes of a run stop together."""

from typing import Any

import pytest
from corpus import small_config, small_store
from runs import complete_steps

from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import StoppedError
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions


def test_a_run_that_stops_waits_for_all_processes_once_its_checkpoint_is_written(
    tmp_path, monkeypatch
):
    """A process that exits before would end process 0, which may still be writing."""
    run, exchanges = tmp_path / "run", []
    gather = ProcessGroup.all_gather_text

    def all_gather_text(peers: ProcessGroup, name: str, *args: Any, **options: Any) -> list[str]:
        exchanges.append((name, complete_steps(run)))
        return gather(peers, name, *args, **options)

    monkeypatch.setattr(ProcessGroup, "all_gather_text", all_gather_text)
    with pytest.raises(StoppedError):
        pretrain(
            small_config(small_store(tmp_path / "store")), run, options=RunOptions(stop_after=1)
        )
    assert exchanges[-1] == ("saved", [1])
