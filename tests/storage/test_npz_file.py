"""Arrays in .npz files, whose sizes may lie."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bert_jax.storage.npz_file import npz_bytes, read_npz

HUGE = 2**31 - 1


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_are_read_as_they_were_saved(compressed: bool, tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array("text"), "c": np.zeros((0, 2))}
    (tmp_path / "a.npz").write_bytes(npz_bytes(arrays, compressed=compressed))
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_the_size_of_a_header_is_that_of_its_bytes(tmp_path: Path) -> None:
    saved = io.BytesIO()
    np.save(saved, np.zeros(100, np.float32))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", saved.getvalue().replace(b"(100,)", b"(900,)"))
    with pytest.raises(ValueError, match=r"^a\.npy has not the size of \(900,\) of float32"):
        read_npz(tmp_path / "a.npz")


def test_a_size_that_no_compressed_bytes_can_hold_is_refused(tmp_path: Path) -> None:
    """Before anything of that size is allocated."""
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(100))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    entry = data.rindex(b"PK\x01\x02")  # of the directory, which says the size 24 bytes later
    data[entry + 24 : entry + 28] = HUGE.to_bytes(4, "little")
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match="'a' is larger than its compressed bytes can hold"):
        read_npz(tmp_path / "a.npz")
