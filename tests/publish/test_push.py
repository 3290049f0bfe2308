"""`convert export --push` and `convert push`: what a hub on loopback is sent."""

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from exported import make_run
from hub_server import use_endpoint
from hub_uploads import TOKEN, Uploads, serve_uploads

from bert_jax import cli
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.exit_codes import DONE, FAILED, USAGE

# The client's own way to put a file, in 2.4.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAME = "me/my-bert"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with checkpoints of steps 2 and 4."""
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(94))]
    tokenizer = Tokenizer.from_vocab(entries, lowercase=True)
    return Path(make_run(tokenizer, tmp_path_factory.mktemp("push"))[0])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Uploads]:
    """A hub that the client uses, with the token of its owner."""
    with serve_uploads() as server:
        use(monkeypatch, server.endpoint)
        yield server


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """The client uses a hub, with the token of its owner."""
    use_endpoint(monkeypatch, endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def export(run: Path, out: Path, *flags: str, push: str = NAME) -> int:
    words = ["convert", "export", f"--workdir={run}", f"--out={out}", f"--push={push}"]
    return cli.main([*words, *flags])


def push(folder: Path, *flags: str) -> int:
    return cli.main(["convert", "push", f"--from={folder}", f"--push={NAME}", *flags])


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def are_as_summed(hub: Uploads, left_out: str = "") -> bool:
    """Whether the files of the repository, but one, are those of its SHA256SUMS."""
    files = {name: data for name, data in hub.files(NAME).items() if name != left_out}
    lines = files.pop("SHA256SUMS").decode().splitlines()
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return sorted(lines) == sorted(f"{digest}  {name}" for name, digest in digests.items())


def fails(capsys: pytest.CaptureFixture, *parts: str) -> str:
    """The one line on standard error; it has the parts and not the token."""
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, captured.err
    assert all(part in lines[0] for part in parts), lines[0]
    assert TOKEN not in captured.err + captured.out
    return lines[0]


def test_a_push_sends_the_export_to_a_private_repository(
    run: Path,
    hub: Uploads,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "out"
    assert export(run, out) == DONE
    assert hub.files(NAME) == contents(out)
    assert hub.private[NAME]
    card = hub.files(NAME)["README.md"].decode()
    assert "trained for 4 steps" in card
    assert f'from_pretrained("{NAME}")' in card
    assert f'bert_jax.load("hf:{NAME}")' in card
    assert "## Held-out metrics" in card
    captured = capsys.readouterr()
    assert f"{hub.endpoint}/{NAME}" in captured.out
    assert "(private, revision main)" in captured.out
    assert TOKEN not in captured.out + captured.err
    assert not any(TOKEN.encode() in data for data in contents(out).values())
    sent, asked = hub.sent, len(hub.asked)
    assert push(out) == DONE  # nothing is sent twice
    assert hub.sent == sent
    assert len(hub.asked) > asked
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{out}: nothing to push; all of it is at {hub.endpoint}/{NAME}")
    assert captured.out.count("\n") == 1
    assert "No files have been modified" not in captured.err + caplog.text


def test_public_is_a_flag_and_access_is_never_changed(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert export(run, tmp_path / "out", "--public") == DONE
    assert not hub.private[NAME]
    sent = hub.files(NAME)
    assert push(tmp_path / "out") == FAILED
    fails(capsys, f"{NAME}: exists and is public; give --public")
    hub.private[NAME] = True
    assert push(tmp_path / "out", "--public") == FAILED
    fails(capsys, f"{NAME}: exists and is private; leave out --public")
    assert hub.files(NAME) == sent


def test_a_newer_export_replaces_an_earlier_one(run: Path, hub: Uploads, tmp_path: Path) -> None:
    assert export(run, tmp_path / "two", "--step=2", "--max_shard_size=20KB") == DONE
    assert "model.safetensors.index.json" in hub.files(NAME)
    hub.branches[NAME]["main"]["LICENSE"] = b"of the user"
    assert export(run, tmp_path / "four") == DONE
    assert hub.files(NAME) == contents(tmp_path / "four") | {"LICENSE": b"of the user"}


def test_checkpoints_are_revisions_by_name(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert export(run, tmp_path / "two", "--revision=step-2") == DONE
    assert hub.files(NAME, "step-2") == contents(tmp_path / "two")
    card = hub.files(NAME, "step-2")["README.md"].decode()
    assert card.count(f'from_pretrained("{NAME}", revision="step-2")') == 2
    assert f'bert_jax.load("hf:{NAME}@step-2")' in card
    assert hub.files(NAME) == {}
    assert export(run, tmp_path / "three", "--revision=step-3") == FAILED
    fails(capsys, "no checkpoint of step 3, only 2, 4", "config.checkpoint.keep_every_steps=3")
    assert not (tmp_path / "three").exists()
    assert export(run, tmp_path / "x", "--revision=two") == FAILED
    fails(capsys, "--revision=two: names no checkpoint")
    assert export(run, tmp_path / "x", "--revision=step-2", "--step=4") == FAILED
    fails(capsys, "--revision=step-2: is not of --step=4")
    assert export(run, tmp_path / "all", "--all_steps") == DONE
    assert hub.branches[NAME].keys() == {"main", "step-2", "step-4"}
    assert hub.files(NAME) == hub.files(NAME, "step-4") == contents(tmp_path / "all/step-4")
    assert f'("{NAME}")' in hub.files(NAME)["README.md"].decode()
    older = hub.files(NAME, "step-2")["README.md"].decode()
    assert f'("{NAME}", revision="step-2")' in older


def test_a_cut_push_goes_on_where_it_was(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    hub.refuse = ("POST .*/commit/", 500)
    out = tmp_path / "out"
    assert export(run, out, "--revision=step-2") == FAILED
    line = fails(capsys, "(500: ", f"{out} stays: push it again with `bert-jax convert push")
    command = line.split("`")[1]
    sent, hub.refuse = hub.sent, None
    assert sent > 0
    assert cli.main(command.split()[1:]) == DONE
    assert hub.files(NAME, "step-2") == contents(out)
    assert hub.sent == sent


def test_after_a_cut_push_of_all_checkpoints_the_named_command_pushes_the_rest(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    hub.refuse = ("POST .*/commit/step-2", 500)
    out = tmp_path / "all"
    assert export(run, out, "--all_steps", "--public", "--dtype=bfloat16") == FAILED
    line = fails(capsys, "(500: ", f"{out / 'step-2'} stays: push the rest with `bert-jax convert")
    hub.refuse = None
    command = shlex.split(line.split("`")[1])
    assert cli.main(command[1:]) == DONE
    assert hub.branches[NAME].keys() == {"main", "step-2", "step-4"}
    assert hub.files(NAME, "step-2") == contents(out / "step-2")
    assert hub.files(NAME) == hub.files(NAME, "step-4") == contents(out / "step-4")
    assert json.loads(hub.files(NAME)["config.json"])["dtype"] == "bfloat16"


def test_files_of_others_are_neither_sent_nor_overwritten(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    hub.add(NAME, {"README.md": b"# mine", "config.json": b"{}", "model.safetensors": b"other"})
    before = hub.files(NAME)
    out = tmp_path / "out"
    assert export(run, out) == FAILED
    fails(capsys, f"{NAME}: exists with other content (config.json); give a new name", str(out))
    assert hub.files(NAME) == before
    hub.add(NAME, {"README.md": b"# mine"})  # as made on the hub's page
    (out / "notes.txt").write_text("private")
    assert push(out) == DONE
    assert "not pushed, since SHA256SUMS does not list them: notes.txt" in capsys.readouterr().out
    assert "notes.txt" not in hub.files(NAME)


def test_the_card_may_be_edited_before_a_push_and_nothing_else(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    assert export(run, out) == DONE
    card = (out / "README.md").read_text().replace("# license: not stated", "license: mit #")
    (out / "README.md").write_text(card)
    assert push(out) == DONE
    assert hub.files(NAME)["README.md"] == card.encode()
    assert are_as_summed(hub)
    (out / "config.json").write_text("{}")
    assert push(out) == FAILED
    fails(capsys, "config.json: checksum differs from SHA256SUMS")
    assert push(tmp_path) == FAILED
    fails(capsys, f"{tmp_path}: no SHA256SUMS in it")
    digest = hashlib.sha256(b"{}").hexdigest()
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  notes.json\n")  # of another program
    assert push(tmp_path) == FAILED
    fails(capsys, f"{tmp_path}: its weights were not written by bert-jax; give a folder")


def test_a_card_that_was_edited_on_the_hub_stays(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert export(run, tmp_path / "two", "--step=2") == DONE
    card = hub.files(NAME)["README.md"] + b"Ask me anything."
    hub.branches[NAME]["main"]["README.md"] = card
    out = tmp_path / "four"
    for _ in range(2):  # once more: it is not taken for the card that the first one left there
        capsys.readouterr()
        assert export(run, out) == DONE
        assert f"README.md was edited at {NAME} and stays" in capsys.readouterr().out
        assert hub.files(NAME)["README.md"] == card
    others = {name: data for name, data in contents(out).items() if name != "SHA256SUMS"}
    assert hub.files(NAME).items() >= (others | {"README.md": card}).items()
    assert are_as_summed(hub, left_out="README.md")
    (out / "README.md").write_bytes(card)
    assert push(out) == DONE
    assert "stays" not in capsys.readouterr().out
    assert are_as_summed(hub)


def test_a_file_that_was_edited_on_the_hub_is_not_replaced(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out, names = tmp_path / "out", ("config.json", "model.safetensors")
    assert export(run, tmp_path / "two", "--step=2") == DONE
    sent = hub.files(NAME)
    for name in names:
        hub.branches[NAME]["main"] = {**sent, name: b"{}"}
        assert export(run, out) == FAILED
        fails(capsys, f"{NAME}: {name} was edited there since it was pushed; give a new name")
        assert hub.files(NAME) == {**sent, name: b"{}"}
    hub.branches[NAME]["main"] = {**sent, "SHA256SUMS": b"mine"}
    assert push(out) == FAILED
    fails(capsys, f"{NAME}: SHA256SUMS there is damaged", "remove it on its page")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/b/c", ["--push=a/b/c: not the name of a repository"]),
        ("me/my bert", ["not the name of a repository"]),
        ("my-bert", ["--push=my-bert: give OWNER/NAME, such as me/my-bert"]),
        ("other/my-bert", ["403: no rights", "may write there", "stays: push it again with"]),
    ],
)
def test_a_name_that_cannot_be_pushed_to_is_one_line(
    name: str, parts: list[str], run: Path, hub: Uploads, tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    assert export(run, tmp_path / "out", push=name) == FAILED
    fails(capsys, *parts)
    assert not hub.branches
    assert (tmp_path / "out").exists() == name.startswith("other")


@pytest.mark.parametrize("token", ["hf_another", "hf_with\0zero", "hf_\u00e9", "hf_two parts"])
def test_a_token_that_is_not_valid_is_one_line_without_it(
    token: str, run: Path, hub: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "token").write_text(token, encoding="utf-8")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    assert export(run, tmp_path / "out") == FAILED
    line = fails(capsys, "the token ", "; run `hf auth login` or set HF_TOKEN")
    assert (tmp_path / "out").exists() == (token == "hf_another")
    assert not any(shown in line for shown in (token, token[:7], ascii(token)[1:-1]))


@pytest.mark.parametrize("padding", [150, 190])
def test_a_message_of_the_hub_has_no_part_of_the_token(
    padding: int, run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    hub.refuse, hub.message = ("POST .*/commit/", 400), f"{'x' * padding} {TOKEN} was refused"
    assert export(run, tmp_path / "out") == FAILED
    assert TOKEN[:4] not in fails(capsys, f"(400: {'x' * padding}")


def test_without_a_token_nothing_is_exported(
    run: Path, hub: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    assert export(run, tmp_path / "out") == FAILED
    fails(capsys, "no token; run `hf auth login` or set HF_TOKEN")
    assert not (tmp_path / "out").exists()
    assert not hub.asked


def test_without_a_network_the_folder_stays(
    run: Path, hub: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    use(monkeypatch, "http://127.0.0.1:1")
    out = tmp_path / "out"
    assert export(run, out) == FAILED
    fails(capsys, f"{NAME}: cannot be pushed (", f"`bert-jax convert push --from={out}")
    digest = hashlib.sha256(contents(out)["model.safetensors"]).hexdigest()
    assert digest in (out / "SHA256SUMS").read_text()


def test_a_folder_of_exports_is_answered_with_one_of_them(
    run: Path, hub: Uploads, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "all"
    words = ["convert", "export", f"--workdir={run}", f"--out={out}", "--all_steps"]
    assert cli.main(words) == DONE
    (out / "step-10").mkdir()  # is no export
    assert push(out) == FAILED
    line = fails(capsys, f"{out}: no SHA256SUMS in it; give one of its folders, such as {out}/step")
    assert line.endswith("/step-4")
    assert push(Path(line.rpartition(" ")[2])) == DONE


def test_flags_that_exclude_each_other(run: Path, tmp_path: Path) -> None:
    assert export(run, tmp_path / "x", "--all_steps", "--revision=step-2") == USAGE
    words = ["convert", "export", f"--workdir={run}", f"--out={tmp_path / 'x'}"]
    assert cli.main([*words, "--revision=step-2"]) == USAGE
