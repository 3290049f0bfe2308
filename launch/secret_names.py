"""Tells variables that look like secrets, which are given by reference (`--env_from`)."""

import re

# Of names; what only looks like these is left out: tokenizers, numbers of tokens, authors, PWD,
# monkeys, bypasses.
_NAME = re.compile(
    r"""(?<!max_)(?<!min_)(?<!num_)(?<!^n_)token(?!i[sz]|s_per)
    | passw | passphrase | passfile | (?<!^)(?<!^old)pwd | pw(_|\d*$) | secret | credential
    | (?<!com)(?<!by)(?<!tres)(?<!sur)(?<!over)(?<!under)(?<!high)(?<!low)(?<!band)pass(_|\d*$)
    | (^|_)creds?(_|$) | (^|_)pat$ | (^|_)sk$ | (^|_)sas(_|$) | mnemonic
    | (?<!mon)(?<!don)(?<!tur)(?<!turn)(?<!hoc)(?<!hok)(?<!joc)(?<!whis)(?<!lac)(?<!hot)
      keys?(_|\d|$)
    | (api|access|secret|private|ssh|gpg|encryption|signing|master|account|license)_?key
    | key(tab|store|file) | shared_?access | (^|_)(sa|service_?account)_?json
    | auth(?!or(?!i[sz])) | jwt | cookie(?!cutter) | bearer | webhook
    | conn(ection)?_?str(ing)?(_|$) | _dsn$""",
    re.IGNORECASE | re.VERBOSE,
)
# Beginnings of tokens that no word has: of GitHub, GitLab, Stripe, AWS, Slack, Google, Docker,
# NVIDIA, DigitalOcean, age; a JSON Web Token.
_CLEAR = r"""(?: gh[oprsu]_ | github_pat_ | glpat- | [rs]k_(?:live|test)_ | AKIA[A-Z0-9] | AIza
    | ASIA[A-Z0-9]{12} | xox[abeprs]- | xapp-\d | ya29\. | dckr_pat_ | nvapi- | dop_v1_
    | AGE-SECRET-KEY- | npm_[A-Za-z0-9]{20} | eyJ[\w-]+\.eyJ )"""
# Those that a folder or a file may have, too: of Hugging Face, OpenAI and others, Groq, PyPI,
# Vault, SendGrid.
_UNCLEAR = r"(?: (?:hf_ | sk- | gsk_ | pypi- | hv[bs]\. | SG\.)\w )"
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
    if _NAME.search(name):
        return "name"
    return "value" if _VALUE.search(value.strip()) else ""
