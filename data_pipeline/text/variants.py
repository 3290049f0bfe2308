"""Blocks of MediaWiki's LanguageConverter: one of the spellings of a word is chosen.

`-{zh-hans:网络;zh-hant:網路}-` gives the spelling for each variant of a language, `-{text}-` text
that is never converted, `-{H|zh-cn:…;zh-tw:…}-` a rule for the rest of the page, which shows
nothing there (mediawiki.org/wiki/Writing_systems/Syntax).
"""

import re
from typing import Final

# The variants whose spelling is taken, the first of these that a block has; else its first. All
# other text stays as its authors wrote it.
_PREFERRED: Final = ("zh-hans", "zh-cn", "zh-sg", "zh-my", "zh")
# Languages that MediaWiki converts (includes/languages/data and LanguageConverterFactory).
_LANGUAGES: Final = "ban|crh|gan|iu|kk|ku|mni|sh|shi|sr|tg|tly|uz|wuu|zgh|zh"
_DEEPEST: Final = 10  # blocks inside each other, as in MediaWiki
_CODE: Final = rf"(?:{_LANGUAGES})(?:-[a-z]{{2,4}})*"
_HIDDEN: Final = frozenset("HT+-")  # flags of rules and of titles, which show nothing there
_FLAGS: Final = re.compile(rf"\s*+(?:(?:[A-Z+-]|{_CODE})(?:\s*+;\s*+(?:[A-Z+-]|{_CODE}))*+)?+\s*+")
# A rule for one variant: the code and a colon, or what is replaced, "=>", the code and a colon.
_RULE: Final = re.compile(rf"\s*+(?:[^;=]*+=>\s*+)?({_CODE})\s*+:", re.IGNORECASE)
_NEXT: Final = re.compile(rf";(?={_RULE.pattern}|\s*+\Z)", re.IGNORECASE)
_MARK: Final = re.compile(r"-\{(?!\{)|\{\{|\}\}|\}-")


def choose_variants(text: str) -> tuple[str, int]:
    """Returns a text with the chosen spelling for each block, also nested ones, and their number.
    The marks of a block that is not closed stay."""
    if "{" not in text or "-{" not in text:  # one character is found faster than two
        return text, 0
    pieces: list[str] = []
    opened: list[int] = []  # where the marks that are open are in `pieces`, "-{" and "{{"
    end = at = depth = count = 0
    while match := _MARK.search(text, at):
        mark, at = match[0], match.end()
        is_template_end = bool(opened) and pieces[opened[-1]] == "{{"
        if mark == "}}" and not is_template_end:
            at = match.start() + 1  # its second brace may end a block
            continue
        pieces.append(text[end : match.start()])
        pieces.append(mark)
        end = match.end()
        if mark == "{{" or (mark == "-{" and depth < _DEEPEST):
            opened.append(len(pieces) - 1)
            depth += mark == "-{"
        elif mark == "}}":
            opened.pop()
        elif mark == "}-" and depth:
            while pieces[start := opened.pop()] != "-{":
                pass  # a template that is not closed
            depth -= 1
            count += 1
            pieces[start:] = [_chosen("".join(pieces[start + 1 : -1]))]
    return "".join(pieces) + text[end:], count


def _chosen(content: str) -> str:
    """Returns what a block shows."""
    flags, bar, rules = content.partition("|")
    if not bar or not _FLAGS.fullmatch(flags):
        flags, rules = "", content
    if _HIDDEN & set(re.split(r"[\s;]+", flags)):
        return ""
    spellings: dict[str, str] = {}
    for rule in _NEXT.split(rules)[:: _NEXT.groups + 1]:
        if found := _RULE.match(rule):
            spellings.setdefault(found[1].lower(), rule[found.end() :].strip())
        elif rule.strip():
            return rules  # text that is not converted
    chosen = next((code for code in _PREFERRED if code in spellings), next(iter(spellings), ""))
    return spellings.get(chosen, "")
