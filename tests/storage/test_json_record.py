"""JSON that a program wrote: another form is an error that names the place."""

from typing import Any

import pytest

from bert_jax.storage import json_record

FORM = {"steps": json_record.count, "names?": [json_record.text], "size": (int, float)}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ('{"size": [1, 0.5]}', "steps"),
        ('{"steps": -1, "size": [1, 0.5]}', "steps"),
        ('{"steps": 1, "size": [1]}', "size"),
        ('{"steps": 1, "size": [true, 0.5]}', r"size\[0\]"),
        ('{"steps": 1, "size": [1, 0.5], "names": ["a", 2]}', r"names\[1\]"),
        ("[]", "its value"),
    ],
)
def test_another_form_is_named(value: str, place: str) -> None:
    with pytest.raises(ValueError, match=f"^{place} is missing or not as it was written$"):
        json_record.parse(value, FORM)


@pytest.mark.parametrize(
    "value", [{"steps": 1, "size": [1, 0.5]}, {"steps": 0, "size": [2, 0.5], "names": ["a"]}]
)
def test_a_record_of_the_form_is_read(value: dict[str, Any]) -> None:
    assert json_record.has_form(value, FORM)
    assert json_record.parse(str(value).replace("'", '"'), FORM) == value
