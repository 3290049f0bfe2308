"""States where a setting is declared if it may change when a run resumes."""

import dataclasses
import enum
import typing
from typing import Final


class OnResume(enum.Enum):
    """Answers to: may a run resume with another value of a setting?

    The values are what the table of keys in docs/configs.md says.
    """

    FIXED = "no"  # of every setting that states nothing else
    FREE = "yes"  # changes neither examples, nor what parameters mean, nor the dtype of moments
    ROUNDS = "bits"  # as FREE, but it changes the order or precision of sums


_KEY: Final = "on_resume"
# The metadata of a field: of a setting, or of a group whose settings state nothing else. In a phase
# it holds once the phase has begun.
FIXED, FREE, ROUNDS = ({_KEY: one} for one in OnResume)


def on_resume(cls: type, key: str) -> OnResume:
    """Returns what a setting of nested dataclasses states, or the innermost group around it.

    key: as in `serialization.flatten`; also one that only another version has.
    """
    found: OnResume = OnResume.FIXED
    for name in (part.partition("[")[0] for part in key.split(".")):
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        field = next((field for field in fields if field.name == name), None)
        if field is None:
            break
        found = field.metadata.get(_KEY, found)
        hint = typing.get_type_hints(cls)[name]
        cls = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
    return found
