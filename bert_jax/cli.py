"""`bert-jax VERB`: finds the verb, reads its flags, turns errors into one line and an exit code."""

import signal
import sys
from collections.abc import Iterable, Sequence

from absl import flags

from bert_jax.config_values import nearest
from bert_jax.errors import DONE, USAGE, StoppedError, UsageError, code_of
from bert_jax.verbs import data, look, train, use
from bert_jax.verbs.verb import Verb, help_of

VERBS: dict[str, Verb] = train.VERBS | data.VERBS | look.VERBS | use.VERBS


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except UsageError as error:
        print(f"usage: {error}; see `bert-jax --help`", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        code = code_of(error)
        if code is None:
            raise
        print("" if isinstance(error, StoppedError) else "error: ", error, sep="", file=sys.stderr)
        return code


def _run(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(_overview(VERBS))
        return DONE if words else USAGE
    group = [verb for verb in VERBS if verb.startswith(f"{words[0]} ")]
    if group and (len(words) == 1 or words[1] in ("--help", "-h", "help")):
        print(_overview(group))
        return DONE if len(words) > 1 else USAGE
    name = next((v for v in VERBS if words[: len(v.split())] == v.split()), None)
    if name is None:
        said = " ".join(words[:2] if group else words[:1])
        raise UsageError(f"there is no verb {said!r}{nearest(said, VERBS)}")
    verb, rest = VERBS[name], words[len(name.split()) :]
    values = flags.FlagValues()
    if any(word.startswith("--config") for word in rest):
        from bert_jax.config_file import resolve

        rest = resolve(rest)
    verb.define(values, rest)
    if "--help" in rest or "-h" in rest:
        print(_help(name, verb, values))
        return DONE
    try:
        arguments = values([name, *rest])[1:]
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from None
    if arguments and not verb.words:
        raise UsageError(f"{name} takes only --flag=value, not {arguments[0]!r}")
    verb.run(values, arguments)
    return DONE


def _overview(names: Iterable[str]) -> str:
    lines = ["bert-jax VERB [--flag=value ...]", ""]
    lines += [f"  {name:<16}{VERBS[name].says}" for name in names]
    return "\n".join([*lines, "", "bert-jax VERB --help shows a verb's flags and an example."])


def _help(name: str, verb: Verb, values: flags.FlagValues) -> str:
    lines = [f"bert-jax {name} [--flag=value ...]{verb.words}", "", f"  {verb.says}", ""]
    for flag in values:
        default = values[flag].default
        # The default config is a path here: `define_config` names it in the help.
        shown = "" if default in (None, []) or flag == "config" else f" (default {default})"
        lines.append(f"  --{flag:<16}{help_of(values, flag)}{shown}")
    return "\n".join([*lines, "", "Example:", f"  {verb.example}"])
