"""Source kind `hf`: a dataset on the Hugging Face hub, by name; each row is a document.

Only Parquet files are read: those that the `configs` of its card name, else those of the branch
refs/convert/parquet, which the hub writes. A script that a dataset has is never run.
"""

import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from bert_jax.data_pipeline.sources import parquet
from bert_jax.data_pipeline.sources.arrow_batches import check_arrow
from bert_jax.data_pipeline.sources.document import Document, Range, SourceSpec
from bert_jax.data_pipeline.sources.finding import Found
from bert_jax.data_pipeline.sources.kind import TEXT, TITLE, Kind
from bert_jax.errors import UserError, first_few, nearest_name
from bert_jax.storage import hub
from bert_jax.storage.hub import TRAIN, HubName
from bert_jax.storage.reader_errors import ANY_ERRORS, reader_errors

_CARD: Final = "README.md"
_CONVERTED: Final = "refs/convert/parquet"
_PARTIAL: Final = "partial-"  # before a split of which the hub has converted the first 5 GB
_ENDING: Final = ".parquet"
_DEFAULT: Final = "default"
_SHOWN: Final = 10  # names in a message
_GLOB: Final = re.compile(r"(?:\*\*/)+|\*\*|\*|\?|\[!?[^/]+?\]")
_AS_PATTERN: Final = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
# Names of splits, and what the Hub takes for them: words of a path, bounded by these characters.
_WORDS: Final = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_BOUND: Final = "[-._ 0-9]"
_IN_FOLDER: Final = ("**/{w}/**", "**/{w}{b}*/**", "**/*{b}{w}/**", "**/*{b}{w}{b}*/**")
_IN_FILE: Final = ("**/{w}{b}*", "**/*{b}{w}{b}*")
_SHARD: Final = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*")
# Names of configurations -> names of their splits -> paths of their files.
Configs = Mapping[str, Mapping[str, Sequence[str]]]


def find(spec: SourceSpec) -> Found:
    """Downloads the Parquet files of a split to the cache of the client, and returns them.

    Raises:
        UserError: as `hub.fetch`; the dataset has no Parquet files, no such configuration or split,
            or only the first part of it.
    """
    name = hub.parse_dataset(str(spec.path))
    paths, folder, at = _download(name, allow_partial=spec.allow_partial)
    return Found(paths, {}, base=folder, commits=hub.recorded([name, at]))


def read(spec: SourceSpec, part: Range) -> Iterator[Document]:
    """Yields the documents of a range, as `parquet.read`; messages name the dataset."""
    with hub.naming(str(spec.path), _folder_of(part.path)):
        yield from parquet.read(spec, part)


def ranges(spec: SourceSpec, path: Path) -> Iterator[Range]:
    """Yields the ranges of a file, as `parquet.ranges`; messages name the dataset."""
    with hub.naming(str(spec.path), _folder_of(path)):
        yield from parquet.ranges(spec, path)


def _folder_of(file: Path) -> Path:
    """Returns the folder in the client's cache that has the repository of a file."""
    return next((one for one in file.parents if one.parent.name == "snapshots"), file.parent)


def download(name: str) -> tuple[list[Path], Path]:
    """Returns the Parquet files of a split of a task in the client's cache, and the folder that has
    the repository; UserError as `find`."""
    paths, folder, _ = _download(hub.parse_dataset(name), allow_partial=None)
    return paths, folder


def commits_of(name: str) -> dict[str, str]:
    """Returns the commits that the files of a split are read at, see `hub.recorded`; UserError as
    `find`."""
    parsed = hub.parse_dataset(name)
    _, at = _located(parsed, allow_partial=None)
    return hub.recorded([parsed, at])


def _download(name: HubName, *, allow_partial: bool | None) -> tuple[list[Path], Path, HubName]:
    """Returns the files, their repository's folder, and the name of where they are.

    allow_partial: None if the command has no such flag.
    """
    files, at = _located(name, allow_partial=allow_partial)
    folder = hub.fetch(at, [_escaped(file) for file in files])
    return sorted(folder / file for file in files), folder, at


def _located(name: HubName, *, allow_partial: bool | None) -> tuple[Sequence[str], HubName]:
    """Returns the paths of the files of a split, and the name of the repository and revision."""
    check_arrow("datasets on the hub")
    at, configs = _of_card(name)
    if not any(configs.values()) or configs.get(name.config or _DEFAULT) == {}:
        at, configs = _converted(name)
    converted = at.revision == _CONVERTED
    return _split(name, configs, converted=converted, allow_partial=allow_partial), at


def _of_card(name: HubName) -> tuple[HubName, Configs]:
    """Returns the configurations that the card of a dataset names, without files of other formats;
    none if it names none."""
    card = hub.fetch(name, [_CARD, ".gitattributes"]) / _CARD
    if not card.is_file():
        return name, {}
    from huggingface_hub import metadata_load

    where = f"{name}/{_CARD}"
    with reader_errors(where, ANY_ERRORS, "its settings cannot be read", "tell its owner"):
        values = metadata_load(card) or {}
    found = [entry for entry in _listed(values.get("configs")) if isinstance(entry, dict)]
    files = [file for file in hub.files_of(name) if file.endswith(_ENDING)] if found else []
    configs: dict[str, dict[str, list[str]]] = {}
    for entry in found:
        title = str(entry.get("config_name", _DEFAULT))
        folder = str(entry.get("data_dir") or "")
        if folder and entry.get("data_files") is None:
            splits = _by_name(files, folder)
        else:
            patterns = _patterns(entry.get("data_files"), folder)
            splits = {split: _matching(files, several) for split, several in patterns.items()}
        configs[title] = {split: names for split, names in splits.items() if names}
        if entry.get("default") is True:
            configs[_DEFAULT] = configs[title]
    return name, configs


def _patterns(data_files: Any, folder: str) -> dict[str, list[str]]:
    """Returns the patterns of each split, of a card's `data_files` in any of its forms."""
    if isinstance(data_files, dict):
        data_files = [{"split": split, "path": path} for split, path in data_files.items()]
    patterns: dict[str, list[str]] = {}
    for entry in _listed(data_files):
        given = entry if isinstance(entry, dict) else {"path": entry}
        paths = [path for path in _listed(given.get("path")) if isinstance(path, str)]
        below = [str(PurePosixPath(folder, path)) for path in paths]
        patterns.setdefault(str(given.get("split", "train")), []).extend(below)
    return patterns


def _by_name(files: Sequence[str], folder: str) -> dict[str, list[str]]:
    """Returns all files below a folder by split, as the Hub does: data/SPLIT-00000-of-00001, else
    by the names of folders, else of files, else all of train."""
    top = f"{PurePosixPath(folder)}/" if PurePosixPath(folder).parts else ""
    below = [file.removeprefix(top) for file in files if file.startswith(top)]
    sharded: dict[str, list[str]] = {}
    for file in below:
        if match := _SHARD.fullmatch(file):
            sharded.setdefault(match[1], []).append(file)

    def named(patterns: Sequence[str]) -> dict[str, list[str]]:
        return {
            split: _matching(
                below, [p.format(w=word, b=_BOUND) for word in words for p in patterns]
            )
            for split, words in _WORDS.items()
        }

    found = itertools.chain([sharded], map(named, (_IN_FOLDER, _IN_FILE)))
    splits = next((one for one in found if any(one.values())), {TRAIN: below})
    return {split: [top + file for file in names] for split, names in splits.items()}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _matching(files: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Returns the files that patterns name: `*` within a folder, `**` across them, `?` a character,
    `[0-9]` and `[!a]` one of some; the name of a folder, in full, stands for all that is in it."""
    regexes = [
        re.compile(_as_regex(pattern) + ("" if _GLOB.search(pattern) else "(?:/.*)?"))
        for pattern in patterns
    ]
    return [file for file in files if any(regex.fullmatch(file) for regex in regexes)]


def _as_regex(pattern: str) -> str:
    parts, end = [], 0
    for match in _GLOB.finditer(pattern):
        found = _AS_PATTERN.get(match[0], "(?:.*/)?")
        if match[0].startswith("["):
            found = fnmatch.translate(match[0])[len("(?s:") : -len(r")\Z")]
        parts += [re.escape(pattern[end : match.start()]), found]
        end = match.end()
    return "".join([*parts, re.escape(pattern[end:])])


def _converted(name: HubName) -> tuple[HubName, Configs]:
    """Returns the configurations that the hub has converted: CONFIG/SPLIT/NAME.parquet. With a
    revision these must be there, since the branch has those of the newest one alone."""
    at = name if name.revision else name.at(_CONVERTED)
    files = []
    with suppress(hub.NoRevisionError):
        files = hub.files_of(at)
    configs: dict[str, dict[str, list[str]]] = {}
    for file in files:
        config, *rest = file.split("/")
        if len(rest) == 2 and file.endswith(_ENDING):
            configs.setdefault(config, {}).setdefault(rest[0], []).append(file)
    if not configs:
        copy = f"nor has the hub a copy of its own ({_CONVERTED})"
        is_parquet = any(file.endswith(_ENDING) for file in hub.files_of(name))
        form = "parquet:FILE" if is_parquet else "jsonl:FILE, csv:FILE or the like"
        remedy = f"download its files and pass --source={form}"
        if name.revision:
            copy = f"and the hub has a copy of the newest commit alone ({_CONVERTED})"
            remedy = "leave out the revision"
        raise UserError(f"{name}: no Parquet files by its card, {copy}; {remedy}")
    return at, configs


def _split(
    name: HubName, configs: Configs, *, converted: bool, allow_partial: bool | None
) -> Sequence[str]:
    """Returns the files of the split that is named; UserError as `find`.

    converted: whether they are those that the hub has written.
    """
    splits, whole = configs[_config(name, configs)], name.split.removeprefix(_PARTIAL)
    if name.split in splits and (name.split == whole or not converted):
        return splits[name.split]
    if (part := splits.get(f"{_PARTIAL}{whole}")) is None:
        raise UserError(f"{name}: no split {name.split}; it has {_shown(splits)}")
    if not allow_partial:
        flag = "" if allow_partial is None else "give --allow_partial to take these, or "
        raise UserError(
            f"{name}: the hub has converted only the first 5 GB of {whole}; {flag}download its "
            "files"
        )
    return part


def _config(name: HubName, configs: Configs) -> str:
    """Returns the configuration that is named, else the only or the default one."""
    if name.config in configs:
        return name.config
    if name.config:
        near = nearest_name(name.config, configs)
        hint = f"did you mean {near}?" if near else f"it has {_shown(configs)}"
        raise UserError(f"{name}: no configuration {name.config}; {hint}")
    if _DEFAULT in configs or len(configs) == 1:
        return _DEFAULT if _DEFAULT in configs else next(iter(configs))
    raise UserError(
        f"{name}: has {len(configs):,} configurations ({_shown(configs)}); name one: "
        f"{hub.PREFIX}{name.repository}/{min(configs)}"
    )


def _shown(names: Iterable[str]) -> str:
    return ", ".join(first_few(sorted(names), _SHOWN)) or "none"


def _escaped(file: str) -> str:
    """Returns the pattern of `fnmatch` for one file."""
    return re.sub(r"([*?[])", r"[\1]", file)


def _whole_name(text: str, data_dir: str) -> str:
    """Returns the whole name of a dataset, which is what is typed after `hf:`; UserError if it is
    none."""
    return str(hub.parse_dataset(f"{hub.PREFIX}{text}")) if text else ""


def _default_name(whole_name: str) -> str:
    """Returns the NAME of OWNER/NAME, so that two datasets are two names in the metrics."""
    return hub.parse_dataset(whole_name).repository.partition("/")[2] if whole_name else ""


KIND: Final = Kind(
    find,
    read,
    ranges,
    options=(TEXT, TITLE),
    locate=_whole_name,
    default_name=_default_name,
    form=hub.DATASET_FORM.removeprefix(hub.PREFIX),
    plain_text=False,
)
