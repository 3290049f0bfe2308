"""Checks the sources of a command and finds their files."""

from collections import Counter
from collections.abc import Sequence

from bert_jax.data_pipeline.sources import Found, SourceSpec, find
from bert_jax.data_pipeline.store_build.build_report import check_found, print_found
from bert_jax.data_pipeline.text.sentences import check_language
from bert_jax.errors import UserError


def check_sources(sources: Sequence[SourceSpec], held_out_share: float | None = None) -> None:
    """Raises UserError for sources or a held-out share with which nothing can be built."""
    if not sources:
        raise UserError("no source of text; pass --source=KIND:PATH")
    if held_out_share is not None and not 0.0 <= held_out_share <= 0.5:
        raise UserError(f"held-out share {held_out_share} must be between 0 and 0.5")
    for name, count in Counter(spec.name for spec in sources).items():
        if count > 1:
            raise UserError(f"{count} sources are named {name!r}; add ,name=… to --source")
    for spec in sources:
        check_language(spec.language)


def find_all(sources: Sequence[SourceSpec], progress: bool, strict: bool = False) -> list[Found]:
    """Returns the files of each source, and prints what is read and what is left out.

    Raises:
        UserError: a source without files; with `strict`, one that leaves any out.
    """
    found = [find(spec) for spec in sources]
    print_found(sources, found, progress)
    if strict:
        check_found(sources, found)
    return found
