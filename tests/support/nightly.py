"""Cases of a test of which some suffice for every change; `make nightly` runs the others."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def others_nightly(cases: Iterable[Any], *, keep: Collection[Any]) -> list[Any]:
    """Returns the cases for `parametrize`; those that are not kept are marked nightly."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if case in keep else pytest.mark.nightly,
        )
        for case in cases
    ]
