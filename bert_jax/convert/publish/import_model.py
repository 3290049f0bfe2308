"""`bert-jax convert import`: brings a released model into a folder like that of an export.

The result is read by `bert_jax.load`, by transformers and as the start of a run.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from bert_jax.convert import hub, weights
from bert_jax.convert.google_bert import FILES, is_google_bert, read_google_bert
from bert_jax.convert.publish.export import export
from bert_jax.convert.publish.model_card import Card
from bert_jax.convert.reader import StoredModel, read_folder
from bert_jax.convert.weight_files import PYTORCH_FILES, SAFETENSORS_FILES, SETTINGS_FILES
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.storage.remote import is_remote, open_path, storage_errors
from bert_jax.objectives.registry import OBJECTIVES, with_heads


def run_import(source: str, out: Path | str) -> None:
    """Imports a model and prints the result.

    Args:
        source: a folder written by transformers or google-research/bert, local or in a bucket; a
            zip of the latter; or `hf:ORG/NAME[@REVISION]`, a model on the Hugging Face hub.
        out: the folder to write; an earlier import or export is replaced.

    Raises:
        UserError: no such model, or it is damaged, of another family, or has a part that bert-jax
            has not; or as `export`.
        StorageError: the folder cannot be written; an older one is unchanged.
    """
    with _folder(source) as folder:
        model = read_google_bert(folder) if is_google_bert(folder) else read_folder(folder)
        _check_complete(model, source)
        params = weights.stored_params(model.tensors, model.config, model.pad_token_id)
        groups = weights.present(model.tensors, model.config)
        objectives = tuple(n for n in with_heads(groups) if OBJECTIVES[n].head in groups)
        origin = source
        if source.startswith(hub.PREFIX):
            origin = f"{source.partition('@')[0]}@{folder.name}"
        card = Card(origin=origin, objectives=objectives)
        export(params, model.config, model.tokenizer, out, card=card)
    parts = ", ".join(["encoder", *sorted(groups - {"encoder"})])
    if left_out := weights.untrained(model.tensors, model.config):
        print(f"left out, since no class with a head has it: {', '.join(left_out)}")
    print(f"{source} imported to {out}: {parts}")


def _check_complete(model: StoredModel, source: str) -> None:
    """Raises UserError if the result would lack a part of the model."""
    lost = weights.leftover(model.tensors, model.config)
    if lost:
        more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
        raise UserError(f"{source}: bert-jax has no place for {lost[0]}{more}; nothing was written")


@contextmanager
def _folder(source: str) -> Iterator[Path]:
    """Yields the local folder with the model; what must be unpacked or copied is in a temporary
    one."""
    if source.startswith(hub.PREFIX):
        yield hub.download(source.removeprefix(hub.PREFIX))
    elif is_remote(source) or zipfile.is_zipfile(source):
        temporary = Path(tempfile.mkdtemp(prefix="bert-jax-"))
        try:
            (_copy if is_remote(source) else _unpack)(source, temporary)
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    elif Path(source).is_file():
        raise UserError(f"{source}: a file, but no zip; give a folder or a zip with a model")
    else:
        _check_links(Path(source))
        yield Path(source)


def _check_links(folder: Path) -> None:
    """Raises UserError for a symbolic link to a file outside; the hub's cache has such links to the
    blobs beside its snapshots."""
    allowed = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":
        allowed.append(folder.resolve().parents[1] / "blobs")
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() and not any(map(path.resolve().is_relative_to, allowed)):
            raise UserError(f"{path}: a symbolic link to a file outside; copy the file there")


def _copy(source: str, folder: Path) -> None:
    """Copies the files of a model from a bucket."""
    patterns = (*SETTINGS_FILES, *SAFETENSORS_FILES, *PYTORCH_FILES)
    with storage_errors(source, "cannot be read"):
        for path in open_path(source).iterdir():
            if FILES.fullmatch(path.name) or any(fnmatch(path.name, p) for p in patterns):
                path.copy(folder / path.name)


def _unpack(path: str, folder: Path) -> None:
    """Unpacks the files of a model, which released zips hold in a folder of their own."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = PurePosixPath(member.filename).name
                if FILES.fullmatch(name) and not member.is_dir():
                    if (folder / name).exists():
                        raise UserError(f"{path}: holds {name} twice; unpack the model to import")
                    with archive.open(member) as stream, (folder / name).open("wb") as file:
                        shutil.copyfileobj(stream, file)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path}: damaged ({error}); download it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be unpacked ({error.strerror})") from None
    if not is_google_bert(folder):
        raise UserError(f"{path}: holds no model of google-research/bert (no bert_config.json)")
