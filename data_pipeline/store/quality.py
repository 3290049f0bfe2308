"""Quality checks of a store's text before a model is trained on it."""

from typing import Final, NamedTuple

from bert_jax.data_pipeline.store.manifest import SPLITS
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import count

SHORT: Final = 64  # tokens; a shorter document fills little of an example
MOST_UNKNOWN: Final = 0.01  # share of a source's tokens
# Held-out text below both says little about a model.
FEWEST_DOCUMENTS: Final = 20
FEWEST_TOKENS: Final = 50_000


class Concern(NamedTuple):
    """Something of a store that matters to who trains on it, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def concerns(store: TokenStore) -> list[Concern]:
    """Returns what matters: [UNK], and held-out text that is too small."""
    found = [
        Concern(
            f"{share:.1%} of the tokens{f' of {source}' if source else ''} are [UNK]",
            "the vocabulary lacks characters or words of this text: train one on it with "
            "`bert-jax data tokenizer`, or use the vocabulary made for it",
        )
        for source, share in unknown_shares(store).items()
        if share > MOST_UNKNOWN
    ]
    documents, tokens = len(store.held_out.document_lengths), len(store.held_out.tokens)
    if documents < FEWEST_DOCUMENTS and tokens < FEWEST_TOKENS:
        found.append(
            Concern(
                "little held-out text, so results depend strongly on which documents are in it",
                f"{count(documents, 'document')} and {count(tokens, 'token')}, fewer than "
                f"{FEWEST_DOCUMENTS} and {FEWEST_TOKENS:,}: build with more text, shorter "
                "documents, or a larger --held_out_share",
            )
        )
    return found


def unknown_shares(store: TokenStore) -> dict[str, float]:
    """Returns the share of [UNK] among the tokens of each source; under "" that of all, where the
    manifest does not say it of the sources."""
    shares = {}
    for source in store.manifest["sources"]:
        splits = [source.get("splits", {}).get(split, {}) for split in SPLITS]
        if not all({"unknown", "tokens"} <= set(split) for split in splits):
            break
        unknown, tokens = (sum(split[key] for split in splits) for key in ("unknown", "tokens"))
        shares[source["name"]] = unknown / tokens if tokens else 0.0
    else:
        return shares
    both = (store.train, store.held_out)
    unknown = sum(int(split.token_counts[store.special.unk]) for split in both)
    return {"": unknown / max(sum(len(split.tokens) for split in both), 1)}
