"""Tests of a log that grows on a shared disk: each line is copied once, and whole."""

import os

import pytest

from bert_jax.errors import UserError
from bert_jax.launch.slurm.log_file import LogFile


def test_each_line_is_copied_once_when_it_is_complete(tmp_path, capsys):
    log = LogFile(tmp_path / "log")
    log.copy_lines()  # not there yet
    with (tmp_path / "log").open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        log.copy_lines()
        assert capsys.readouterr().out == "one\n"
        file.write(b"o\n\nthr")
        log.copy_lines()
        log.copy_lines()
        assert capsys.readouterr().out == "two\n\n"
        file.write(b"ee")
    log.copy_rest()
    log.copy_rest()
    assert capsys.readouterr().out == "three\n"


def test_what_was_there_before_may_be_left_out(tmp_path, capsys):
    (tmp_path / "log").write_text("of an earlier job\n")
    log = LogFile(tmp_path / "log", from_end=True)
    with (tmp_path / "log").open("a") as file:
        file.write("new\n")
    log.copy_rest()
    assert capsys.readouterr().out == "new\n"
    LogFile(tmp_path / "log").copy_rest()
    assert capsys.readouterr().out == "of an earlier job\nnew\n"


def test_bytes_of_no_encoding_are_shown(tmp_path, capsys):
    """Also a character that is written in two parts."""
    log = LogFile(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"caf\xc3")
    log.copy_lines()
    with (tmp_path / "log").open("ab") as file:
        file.write(b"\xa9 \xff\n")
    log.copy_lines()
    assert capsys.readouterr().out == "café \\xff\n"


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "device", "folder"])
def test_what_others_put_in_place_of_a_log_is_one_line(kind, tmp_path):
    """A pipe without a writer, and a device without an end, would stop the command."""
    path = tmp_path / "log"
    match kind:
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to("pipe") if "link" in kind else os.replace(tmp_path / "pipe", path)
    with pytest.raises(UserError, match=f"{path}: ") as error:
        LogFile(path, from_end=True).copy_rest()
    assert "\n" not in str(error.value)
