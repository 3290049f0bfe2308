"""Paragraphs to sentences, through Wikimedia's `sentencex` (github.com/wikimedia/sentencex)."""

import sentencex

from data_pipeline.errors import UserError

# ISO 639-1, and the codes of larger Wikipedias that have no two-letter code. sentencex has rules
# for some thirty of these and takes related languages' rules, finally English, for the others; it
# does so for a misspelt code too, without a word, hence this list.
_CODES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id
ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu
lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu
rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr
ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu arz ast azb bar ceb fil lmo mai min nan
nds new pms sco scn simple szl vec war wuu yue
"""
LANGUAGES = frozenset(_CODES.split())


def check_language(language: str) -> None:
    """Raise UserError for a language code that does not exist, naming the nearest one."""
    if language not in LANGUAGES:
        near = language.lower()[:2]
        near = near if near in LANGUAGES else "en"
        raise UserError(f"language {language!r} is unknown; use an ISO 639 code such as {near!r}")


def split(text: str, language: str) -> list[str]:
    """Sentences of a text with one paragraph a line, stripped, in order, none empty.

    Raises:
        UserError: unknown language.
    """
    check_language(language)
    sentences: list[str] = []
    for line in text.split("\n"):
        glued = False
        for piece in sentencex.segment(language, line):
            # "asyncio.CancelledError" is one word, yet sentencex ends a sentence at its dot.
            if glued and piece[:1].isalpha():
                sentences[-1] += piece.rstrip()
            elif piece.strip():
                sentences.append(piece.strip())
            glued = piece.endswith(".")
    return sentences
