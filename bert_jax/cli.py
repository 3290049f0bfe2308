"""`bert-jax VERB`: finds the verb, reads its flags, turns errors into one line and an exit code."""

import itertools
import signal
import sys
from collections.abc import Iterable, Sequence

from absl import flags

from bert_jax.commands import compile, convert, data, launch, look, pretrain
from bert_jax.commands.command import Verb, help_of
from bert_jax.config.serialization import nearest
from bert_jax.errors import DONE, USAGE, StoppedError, UsageError, UserError, code_of, line_of
from bert_jax.runtime.streams import Outliving, outliving

VERBS: dict[str, Verb] = (
    pretrain.VERBS | data.VERBS | look.VERBS | convert.VERBS | compile.VERBS | launch.VERBS
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    with outliving():
        return _guarded(list(sys.argv[1:] if argv is None else argv))


def _guarded(words: list[str]) -> int:
    """Errors become a line and an exit code."""
    try:
        return _run(words)
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
        said = "" if isinstance(error, StoppedError) else "error: "
        from bert_jax.runtime.console import plain

        print(said, plain(line_of(error)), sep="", file=sys.stderr)
        return code


def _run(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(_overview(VERBS))
        return DONE if words else USAGE
    group = [verb for verb in VERBS if verb.startswith(f"{words[0]} ")]
    if group and (len(words) == 1 or words[1] in ("--help", "-h", "help")):
        print(_overview(group))
        return DONE if len(words) > 1 else USAGE
    name = find(words)
    verb, rest = VERBS[name], words[len(name.split()) :]
    # Behind the flags of a verb that starts others stands their command line, which is theirs.
    own = list(itertools.takewhile(lambda w: w.startswith("-"), rest)) if verb.starts else rest
    if "--help" in own or "-h" in own:
        values, _ = define(name, own)
        print(_help(name, verb, values))
        return DONE
    values, arguments = read(name, rest)
    code = verb.run(values, arguments) or DONE
    if not verb.is_run:
        _check_output()
    return code


def _check_output() -> None:
    """Raises UserError where the disk under standard output did not take all of it. A reader that
    went away (`| head`) has seen what it wanted."""
    if isinstance(sys.stdout, Outliving):
        sys.stdout.flush()
        if sys.stdout.failure:
            raise UserError(f"standard output is not complete: {sys.stdout.failure}")


def find(words: Sequence[str]) -> str:
    """The verb that a command line begins with; raises UsageError where there is none."""
    name = next((v for v in VERBS if list(words[: len(v.split())]) == v.split()), None)
    if name is None:
        in_group = any(verb.startswith(f"{words[0]} ") for verb in VERBS)
        said = " ".join(words[:2] if in_group else words[:1])
        raise UsageError(f"there is no verb {said!r}{nearest(said, VERBS)}")
    return name


def define(name: str, rest: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    """A verb's flags, not yet read, and the words behind it with its config found.

    Raises:
        UserError: there is no such config.
    """
    values, words = flags.FlagValues(), [_underscored(word) for word in rest]
    if not VERBS[name].starts and any(word.startswith("--config") for word in words):
        from bert_jax.config.files import resolve

        words = resolve(words)
    VERBS[name].define(values, words)
    return values, words


def _underscored(word: str) -> str:
    """A flag as it is defined, where its name was written with hyphens: --strict-restore."""
    flag, sign, value = word.partition("=")
    if not flag.startswith("--") or flag.startswith("--config"):
        return word
    return "--" + flag[2:].replace("-", "_") + sign + value


def read(name: str, rest: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    """A verb's flags as the words behind it give them, and what follows the flags.

    Raises:
        UsageError: a flag that does not exist, a value that does not fit, a word too many.
        UserError: there is no such config.
    """
    values, words = define(name, rest)
    try:
        arguments = values([name, *words])[1:]
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from None
    if arguments and not VERBS[name].words:
        raise UsageError(f"{name} takes only --flag=value, not {arguments[0]!r}")
    return values, arguments


def _overview(names: Iterable[str]) -> str:
    lines = ["bert-jax VERB [--flag=value ...]", ""]
    lines += [f"  {name:<18}{VERBS[name].says}" for name in names]
    return "\n".join([*lines, "", "bert-jax VERB --help shows a verb's flags and an example."])


def _help(name: str, verb: Verb, values: flags.FlagValues) -> str:
    lines = [f"bert-jax {name} [--flag=value ...]{verb.words}", "", f"  {verb.says}", ""]
    for flag in values:
        default = values[flag].default
        # The default config is a path here: `define_config` names it in the help.
        shown = "" if default in (None, []) or flag == "config" else f" (default {default})"
        lines.append(f"  --{flag:<16}{help_of(values, flag)}{shown}")
    return "\n".join([*lines, "", "Example:", f"  {verb.example}"])
