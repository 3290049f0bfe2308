"""Tells variables that look like secrets, which are given by reference (`--env_from`)."""

import re

# Of names; what only looks like these is left out: tokenizers, numbers of tokens, authors, PWD.
_NAME = re.compile(
    r"""(?<!max_)(?<!min_)(?<!num_)(?<!^n_)token(?!i[sz]|s_per)
    | passw | passphrase | (^|_)pass(_|$) | sshpass | (?<!^)(?<!^old)pwd | secret | credential
    | (^|_)creds?(_|$) | (^|_)keys?(_|\d|$)
    | (api|access|secret|private|ssh|gpg|encryption|signing|master|account|license)_?key
    | (^|_)pat$ | auth(?!or(?!i[sz])) | jwt | cookie(?!cutter) | bearer | webhook
    | connection_?string | _dsn$""",
    re.IGNORECASE | re.VERBOSE,
)
# Of values: tokens of Hugging Face, GitHub, GitLab, OpenAI and others, AWS, Slack, Google, npm,
# PyPI, Docker; a JSON Web Token; a private key; a password in an address.
_VALUE = re.compile(
    r"""hf_ | gh[oprsu]_ | github_pat_ | glpat- | sk- | sk_live_ | AKIA | ASIA[A-Z0-9]{12}
    | xox[abeprs]- | AIza | ya29\. | npm_[A-Za-z0-9]{20} | pypi- | dckr_pat_ | eyJ[\w-]+\.eyJ
    | Bearer\s | -----BEGIN[ ].*PRIVATE[ ]KEY | \w[\w+.-]*://[^/\s:@]*:[^/\s@]+@""",
    re.VERBOSE,
)


def looks_secret(name: str, value: str) -> str:
    """Returns what of a variable looks like a secret: "name", "value", or "" for neither."""
    if _NAME.search(name):
        return "name"
    return "value" if _VALUE.match(value.strip()) else ""
