"""The same devices in 1, 2 and 4 real processes, and any mixture of them, give the same bits."""

import dataclasses
import os
import shutil
import signal

import numpy as np
import pytest
from corpus import small_store
from processes import Job, assert_same_bits, deep_config, newest_step, records, run

from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.exit_codes import STOPPED
from bert_jax.runtime.cpu import use_cpu_devices
from bert_jax.workdir.layout import Workdir

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"), documents=120)


def varied(config: Config, **changes: dict) -> Config:
    """The configuration with values replaced in its parts: data={…}, phase={…}, mesh={…}, …"""
    phase = dataclasses.replace(config.phases[0], **changes.pop("phase", {}))
    parts = {
        name: dataclasses.replace(getattr(config, name), **values)
        for name, values in changes.items()
    }
    return dataclasses.replace(config, phases=(phase,), **parts)


@pytest.mark.slow
def test_one_two_and_four_processes_give_the_same_bits(disturbed, undisturbed, tmp_path):
    assert disturbed.model.num_hidden_layers == 4
    assert disturbed.model.hidden_dropout_prob > 0
    assert disturbed.phases[0].examples_per_row > 1
    for count in (1, 4):  # the four have one core each, as on machines with fewer
        run(disturbed, tmp_path / f"{count}", tmp_path, processes=count, one_core=count == 4)
        assert_same_bits(undisturbed, tmp_path / f"{count}")


def test_what_the_user_has_set_wins(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    monkeypatch.setenv("PJRT_NPROC", "3")
    use_cpu_devices(None, processes=2)
    assert os.environ["PJRT_NPROC"] == "3"
    assert os.environ["XLA_FLAGS"].endswith("=false --mine")  # of two values XLA takes the last
    monkeypatch.delenv("PJRT_NPROC")
    use_cpu_devices(None, processes=1000)
    assert os.environ["PJRT_NPROC"] == "1000"


PADDED = {"examples_per_row": 1}
CASES = {
    "nsp": {"phase": PADDED},
    "sop": {"data": {"pairing": "sop"}},
    "masks alone, ZeRO-1": {
        "data": {"pairing": "full_sentences"},
        "compute": {"shard_optimizer": True},
    },
    "spans": {
        "data": {"pairing": "single", "masking": "span", "span_boundary": True},
        "phase": PADDED,
    },
    "data and fsdp, micro-batches, LAMB, ZeRO-1": {
        "mesh": {"data": 2, "fsdp": 2},
        "phase": {"micro_batches": 2},
        "optimizer": {"name": "lamb"},
        "compute": {"shard_optimizer": True},
    },
    "data and tensor": {"mesh": {"data": 2, "tensor": 2}, "phase": PADDED},
    # Large enough for sums that are cut by the number of threads.
    "wide": {
        "model": {"hidden_size": 256, "intermediate_size": 1024},
        "phase": {"batch_size": 64},
    },
    "bfloat16": {"compute": {"dtype": "bfloat16", "remat": "full"}},
}


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_objectives_rows_and_meshes(case, store, tmp_path):
    config = varied(deep_config(store, steps=6), **CASES[case])
    for count in (1, 2, 4):
        run(config, tmp_path / f"{count}", tmp_path, processes=count, one_core=count == 4)
        assert_same_bits(tmp_path / "1", tmp_path / f"{count}")


@pytest.mark.nightly
def test_any_mixture_of_restarts_gives_the_same_bits(store, tmp_path):
    """Stopped three times by SIGTERM to another process each time, going on with others."""
    config = deep_config(store, steps=80)
    run(config, tmp_path / "whole", tmp_path, processes=1)
    parts = tmp_path / "parts"
    for count, told in ((1, 0), (2, 1), (4, 2)):
        before = newest_step(parts)
        with Job(config, parts, tmp_path, processes=count) as job:
            job.wait_for(lambda n=before: newest_step(parts) > n, f"a step after {before}")
            job.send(signal.SIGTERM, told)
            assert job.codes() == [STOPPED] * count
    run(config, parts, tmp_path, processes=1)
    assert_same_bits(tmp_path / "whole", parts)


@pytest.mark.nightly
def test_more_processes_go_on_where_one_was(store, tmp_path):
    """Every checkpoint of one process continued by two, and those of two by four."""
    config = deep_config(store, steps=6)
    run(config, tmp_path / "1", tmp_path, processes=1)
    for count in (2, 4):
        one, other = tmp_path / f"{count // 2}", tmp_path / f"{count}"
        shutil.copytree(one, other)
        for lost in (6, 4)[: 2 if count == 2 else 1]:
            shutil.rmtree(Workdir.open(other).checkpoints / str(lost))
        run(config, other, tmp_path, processes=count)
        assert_same_bits(tmp_path / "1", other)


@pytest.mark.nightly
def test_other_topologies_see_the_same_rows(store, tmp_path):
    """Two devices instead of four: another order of additions, nothing else."""
    config = deep_config(store, steps=6)
    run(config, tmp_path / "4", tmp_path, processes=2)
    run(config, tmp_path / "2", tmp_path, processes=2, devices=2)
    four, two = records(tmp_path / "4"), records(tmp_path / "2")
    assert len(four) == len(two)
    for one, other in zip(four, two, strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose(
            [other[k] for k in one if k.endswith("loss")],
            [one[k] for k in one if k.endswith("loss")],
            rtol=1e-6,
        )
