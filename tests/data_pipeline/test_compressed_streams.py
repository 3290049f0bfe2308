"""Files of several compressed streams."""

import bz2
import lzma
from pathlib import Path

import pytest

from bert_jax.data_pipeline.sources.reading import lines
from bert_jax.errors import UserError

COMPRESS = {".bz2": bz2.compress, ".xz": lzma.compress}
TEXT = [f"line {number}" for number in range(3000)]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_all_streams_are_read_or_the_file_is_damaged(suffix: str, tmp_path: Path) -> None:
    file, compress = tmp_path / f"a.txt{suffix}", COMPRESS[suffix]
    streams = [
        compress("".join(f"{line}\n" for line in TEXT[at : at + 1000]).encode())
        for at in (0, 1000, 2000)
    ]
    file.write_bytes(b"".join(streams))
    assert [*lines(file)] == TEXT
    for size in (8, 1 << 17):  # of padding, as of a tape or of xz
        file.write_bytes((b"\0" * size).join(streams) + bytes(size))
        assert [*lines(file)] == TEXT
    for damaged in (b"x" + streams[1][1:], streams[1][:20] + b"xxxx" + streams[1][24:], b"x"):
        file.write_bytes(streams[0] + damaged + streams[2])
        with pytest.raises(UserError, match=r"a.txt.*: cannot be read .*; copy it again"):
            [*lines(file)]
    file.write_bytes(b"".join(streams)[:-5])
    with pytest.raises(UserError, match=r"ends before its last stream does"):
        [*lines(file)]
