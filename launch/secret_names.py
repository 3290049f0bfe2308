"""Tells variables that look like secrets, which are given by reference (`--env_from`)."""

import re
from collections.abc import Mapping
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A part of a name, between underscores, says that the value is a secret if it ends in one of these,
# which may have an "s" more. After each: words with this ending that mean something else.
_SECRET: Final = {
    "password": "", "passwd": "", "passphrase": "", "passfile": "", "secret": "", "mnemonic": "",
    "credential": "", "cred": "sacred", "pw": "", "pwd": "oldpwd",
    "pass": "compass bypass trespass surpass overpass underpass highpass lowpass bandpass",
}  # fmt: skip
# The same, but the value decides, too: `SORT_KEY=name` and `USE_AUTH=false` are no secrets.
_PERHAPS: Final = {
    "token": "", "auth": "", "authorization": "", "authentication": "", "jwt": "", "cookie": "",
    "bearer": "", "webhook": "", "keytab": "", "keystore": "", "keyfile": "",
    "key": "monkey donkey turkey turnkey hockey hokkey jockey whiskey lackey hotkey",
}  # fmt: skip
_WHOLE: Final = _words("sas")  # parts, nothing before them
_LAST: Final = _words("pat sk dsn salt")  # last parts
_PHRASE: Final = re.compile(
    r"conn(ection)?_?str(ing)?(_|$)|shared_?access|(^|_)(sa|service_?account)_?json"
)
# With one of these parts, a name is never harmless: AWS_ACCESS_KEY_ID, DATA_ENCRYPTION_KEY.
_CERTAIN: Final = _words("""
    api apikey access secret private encryption signing master account license ssh gpg
""")
# With one of these, what looks like a secret is a number, a switch, or a path to a socket …
_MEASURES: Final = _words("""
    max min num n per count limit length len size dim rate ratio prob dropout budget type index
    sock socket timeout
""")
# … and with one of these it is a token of a text or the key of a value.
_ROLES: Final = _words("""
    mask pad cls sep bos eos unk special added start end stop image text label data sort cache
    prng rng public primary foreign group join feature column target input output sentence
    partition shard dict state
""")
_SWITCH: Final = re.compile(r"|[01]|true|false|yes|no|on|off|none|null", re.IGNORECASE)
# A number, a token of a text such as [MASK] or <pad>, or a word: no token of a service is so.
_PLAIN: Final = re.compile(
    r"[+-]?\d{0,9}(\.\d{0,9})?(e[+-]?\d+)?|\[\w+\]|<[\w|/]+>|[a-z]{0,16}|[A-Z]{0,16}"
)
# Beginnings of tokens that no word has: of GitHub, GitLab, Stripe, AWS, Slack, Google, Docker,
# NVIDIA, DigitalOcean, age; a JSON Web Token.
_CLEAR = r"""(?: gh[oprsu]_ | github_pat_ | glpat- | [rs]k_(?:live|test)_ | AKIA[A-Z0-9] | AIza
    | ASIA[A-Z0-9]{12} | xox[abeprs]- | xapp-\d | ya29\. | dckr_pat_ | nvapi- | dop_v1_
    | AGE-SECRET-KEY- | npm_[A-Za-z0-9]{20} | eyJ[\w-]+\.eyJ )"""
# Those that a word, a language, a folder or a file may have, too, mostly without a digit: of
# Hugging Face, OpenAI and others, Groq, PyPI, Vault, SendGrid.
_UNCLEAR = r"""(?: hf_(?=[A-Za-z0-9]{10})(?=[A-Za-z]*\d)
    | sk-(?:proj|ant|or|svcacct|admin)-\w | sk-(?=\w*\d)\w
    | (?: gsk_ | pypi- | hv[bs]\. | SG\. )(?=[\w.-]*\d)\w )"""
# Names in the text of a value: of a connection string, an address, JSON or a command.
_INSIDE = r"""(?: passw(?:or)?d | passphrase | (?<![a-z])pwd(?!\s*=\s*[/$]) | secret | credentials?
    | (?: account | access | shared | storage | api | private | secret | master )[_-]?
      (?: access[_-]?)? key (?:[_-]?id)? | x-(?:amz|goog)-signature | sharedaccesssignature
    | (?: access | auth | refresh | api | sas | session | security | id )[_-]?token )"""
_VALUE = re.compile(
    rf"""(?<![A-Za-z0-9_]) {_CLEAR} | (?<![\w/.-]) {_UNCLEAR}
    | ://{_UNCLEAR}[^/\s]*@ | \w[\w+.-]*://[^/\s:@]*:[^/\s@]+@
    | -----BEGIN[ ][A-Z0-9 ]*PRIVATE[ ]KEY
    | Bearer\s+\S | (?i:bearer)\s+[\w.-]{{16}}
    | \b(?i:basic)\s+(?=[A-Za-z]*[a-z][A-Z]|[A-Za-z+/]*\d)[A-Za-z0-9+/]{{6,}}={{0,2}}(?!\w)
    | (?i:{_INSIDE}["']?\s*[=:]\s*["']?[^\s"'=:;,&])
    | (?i:[?&](?:token|key|auth)=[^\s&]) | (?:^|[?&;\s"'])sig=[\w%+/]{{3}}
    | \blogin\s+\S+\s+password\s+\S
    | hooks\.slack\.com/(?:services|workflows|triggers)/ | discord(?:app)?\.com/api/webhooks/
    | webhook\.office\.com/""",
    re.VERBOSE,
)


def looks_secret(name: str, value: str) -> str:
    """Returns what of a variable looks like a secret: "name", "value", or "" for neither.

    A value is searched as a whole: a token may be in an address, in quotes or behind its name.
    """
    if _is_name_of_secret(name, value.strip()):
        return "name"
    return "value" if _VALUE.search(value.strip()) else ""


def _is_name_of_secret(name: str, value: str) -> bool:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()  # apiKey
    parts = [part.rstrip("0123456789") for part in snake.split("_")]
    words = [part for part in parts if part]
    if _SWITCH.fullmatch(value) or not _MEASURES.isdisjoint(words):
        return False
    if _PHRASE.search(snake) or any(_ends(word, _SECRET) for word in words):
        return words[:1] != ["pwd"]
    if not (
        any(_ends(word, _PERHAPS) or word in _WHOLE for word in words)
        or not _LAST.isdisjoint(words[-1:])
    ):
        return False
    is_certain = not _CERTAIN.isdisjoint(words)
    return is_certain or (_ROLES.isdisjoint(words) and not _PLAIN.fullmatch(value))


def _ends(word: str, table: Mapping[str, str]) -> bool:
    """Returns whether a word ends as a table says, and is none of the others with this ending."""
    return any(
        one.endswith(ending) and one not in others.split()
        for one in (word, word.removesuffix("s"))
        for ending, others in table.items()
    )
