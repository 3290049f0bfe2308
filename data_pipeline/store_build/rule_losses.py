"""The share of a source's text that each cleaning rule removes."""

from collections.abc import Mapping
from typing import Any, Final

MOST: Final = 0.05  # share of the text that a rule takes before a build says so


def large_losses(taken: Mapping[str, int], characters: int) -> dict[str, float]:
    """Returns the share of the text that each rule takes which takes more than `MOST`, the largest
    first.

    Args:
        taken: characters that each rule removed.
        characters: what all of them left.
    """
    given = characters + sum(taken.values())
    shares = {rule: count / given for rule, count in taken.items() if count > MOST * given}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def describe(entry: Mapping[str, Any]) -> str:
    """Returns one line on a source, by its entry in the manifest; "" if no rule takes much."""
    losses = entry.get("rules_taking_much", {})
    shares = ", ".join(f"{rule} {share:.1%}" for rule, share in losses.items())
    return f"{entry['name']}: share of the text that a rule takes: {shares}" if shares else ""
