"""Which folders of a run count as checkpoints."""

from etils import epath

from bert_jax.checkpoint.catalog import MARKER, all_steps, complete_steps


def test_only_a_folder_with_the_marker_is_a_complete_checkpoint(tmp_path):
    for step in (10, 20):
        (tmp_path / str(step) / "state").mkdir(parents=True)
    (tmp_path / "10" / MARKER).touch()
    (tmp_path / "notes").mkdir()
    assert all_steps(epath.Path(tmp_path)) == [10, 20]
    assert complete_steps(epath.Path(tmp_path)) == [10]
