"""`bert-jax completion`: scripts that complete commands, flags and configuration keys with Tab.

A script contains every word, so that a shell starts no program to complete one. File names after
`--flag=` are completed by the shell itself.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from absl import flags

from bert_jax.commands.command import Command, define_flags
from bert_jax.commands.launch_job import JOBS
from bert_jax.errors import UsageError, nearest

# `before`: the words typed so far, without flags. `following`: the next ones. `values`: flags with
# their values.
_BASH = """\
_bert_jax() {
    local line=${COMP_LINE:0:COMP_POINT} before= following= values= word typed
    local current=${line##* }
    read -ra typed <<< "${line% *}"
    for word in "${typed[@]:1}"; do
        [[ $word == -* ]] || before+=${before:+ }$word
    done
    case $before in
@CASES@
    esac
    [[ $current == *=* ]] && following=$values
    mapfile -t COMPREPLY < <(compgen -W "$following" -- "$current")
    [[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2> /dev/null
    [[ $current == *=* ]] && COMPREPLY=("${COMPREPLY[@]#*=}")
    return 0
}
complete -o default -F _bert_jax bert-jax
"""
_ZSH = """\
_bert_jax() {
    local current=$words[CURRENT] values=
    local before="${(j: :)${(@)words[2,CURRENT-1]:#-*}}"
    local following=
    case $before in
@CASES@
    esac
    if [[ $current == *=* ]]; then
        compset -P '*='
        compadd -- ${${(M)${=values}:#${current%%=*}=*}#*=} || _files
    else
        compadd -S '' -- ${(M)${=following}:#*=}
        compadd -- ${${=following}:#*=}
    fi
}
(( $+functions[compdef] )) || { autoload -U compinit; compinit }
compdef _bert_jax bert-jax
"""
_FISH = """\
function __bert_jax
    set -l typed (commandline -opc)
    set -e typed[1]
    set -l before (string match -v -- '-*' $typed)
    set -l following
    set -l values
    switch "$before"
@CASES@
    end
    string split -n ' ' -- $$argv[1]
end
set -l has_value 'string match -q -- "*=*" (commandline -ct)'
complete -c bert-jax -f -n "not $has_value" -a '(__bert_jax following)'
complete -c bert-jax -n $has_value -a '(__bert_jax values)'
"""
_CASE = "        '{}') following='{}' values='{}' ;;"
_FISH_CASE = "        case '{}'\n            set following '{}'\n            set values '{}'"
_SHELLS = {"bash": (_BASH, _CASE), "zsh": (_ZSH, _CASE), "fish": (_FISH, _FISH_CASE)}


def command(commands: Mapping[str, Command]) -> Command:
    """Returns the command that completes these commands, and itself."""

    def run(values: flags.FlagValues, words: Sequence[str]) -> None:
        if list(words) not in [[shell] for shell in _SHELLS]:
            raise UsageError(f"completion takes one shell{nearest(' '.join(words), _SHELLS)}")
        print(script(words[0], commands))

    return Command(
        "print a script for bash, zsh or fish that completes commands and keys with Tab",
        "source <(bert-jax completion bash)",
        lambda values, words: None,
        run,
        arguments=" SHELL",
        takes_modules=False,
    )


def script(shell: str, commands: Mapping[str, Command]) -> str:
    """Returns the script for a shell to source."""
    text, case = _SHELLS[shell]
    following, values = _following(commands)
    cases = [
        case.format(before, " ".join(words), " ".join(values.get(before, ())))
        for before, words in following.items()
    ]
    return text.replace("@CASES@", "\n".join(cases)).rstrip()


def _following(
    commands: Mapping[str, Command],
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Returns the words that may follow, and the flags with each of their values, by the words of
    the command before them."""
    words: dict[str, list[str]] = defaultdict(list, {"": ["--help", "--version"]})
    values: dict[str, list[str]] = {"completion": []}
    for name, item in commands.items():
        parts = name.split()
        for depth, part in enumerate(parts):
            group = words[" ".join(parts[:depth])]
            group.extend([part] if part not in group else [])
        words[name], values[name] = _flags(item)
        if item.starts:
            words[name] += JOBS
            for job, command in JOBS.items():
                words[f"{name} {job}"], values[f"{name} {job}"] = _flags(command)
    words["completion"] = list(_SHELLS)
    return words, values


def _flags(item: Command) -> tuple[list[str], list[str]]:
    """Returns the flags of a command, and those that have a list of values with each of them."""
    from bert_jax.config.defaults import defaults
    from bert_jax.config.serialization import flatten, plain
    from bert_jax.config.shipped import shipped

    defined = flags.FlagValues()
    define_flags(item, defined, [])
    words, values = ["--help"], []
    for name in defined:
        flag = defined[name]
        words.append(f"--{name}" if flag.boolean else f"--{name}=")
        choices = shipped() if name == "config" else getattr(flag.parser, "enum_values", ())
        values += [f"--{name}={choice}" for choice in choices]
    if "config" in defined:
        words += [f"--config.{key}=" for key in flatten(plain(defaults()))]
    return words, values
