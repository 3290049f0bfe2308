"""Calls kubectl in one context and namespace."""

import dataclasses
import json
from typing import Any

from bert_jax.errors import UserError
from bert_jax.launch import programs
from bert_jax.launch.programs import ProgramError

_NO_KIND = "the server could not find the requested resource"


@dataclasses.dataclass(frozen=True)
class Kubectl:
    """The program with its first arguments; an empty context or namespace is the user's current."""

    context: str = ""
    namespace: str = ""

    def words(self, *words: str) -> tuple[str, ...]:
        """Returns a command line."""
        chosen = {"--context": self.context, "--namespace": self.namespace}
        return ("kubectl", *(f"{flag}={value}" for flag, value in chosen.items() if value), *words)

    def read(self, *words: str, data: str | None = None) -> str:
        """Calls it; see `programs.call`."""
        return programs.call(self.words(*words), data=data)

    def change(self, *words: str) -> str:
        """Prints the command and calls it, until what it deletes is gone; see `programs.change`."""
        return programs.change(self.words(*words), limit=None)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Returns an object; None if there is none. UserError if the cluster has no such kind."""
        try:
            found: dict[str, Any] = json.loads(self.read("get", kind, name, "--output=json"))
        except ProgramError as error:
            if "doesn't have a resource type" in error.errors or _NO_KIND in error.errors:
                raise UserError(
                    f"the cluster has no {kind}: install it there, or choose another --context"
                ) from None
            if "(NotFound)" in error.errors:
                return None
            raise
        return found

    def list(self, kinds: str, selector: str) -> list[dict[str, Any]]:
        """Returns all objects of these kinds with these labels."""
        printed = self.read("get", kinds, f"--selector={selector}", "--output=json")
        items: list[dict[str, Any]] = json.loads(printed)["items"]
        return items


def condition(found: dict[str, Any], *types: str) -> dict[str, Any] | None:
    """Returns the first condition of these types that is true."""
    conditions = found.get("status", {}).get("conditions", [])
    true = {one["type"]: one for one in conditions if one["status"] == "True"}
    return next((true[name] for name in types if name in true), None)
