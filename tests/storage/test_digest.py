"""The digests that stored files have: the same value must give the same digest for ever."""

import hashlib

from bert_jax.storage.digest import file_digest, json_digest, sha256

VALUE = {"b": [1, 2.5, None, "é"], "a": {"y": True, "x": ""}}
SPACED = b'{"a": {"x": "", "y": true}, "b": [1, 2.5, null, "\\u00e9"]}'


def test_the_digest_of_a_value_is_that_of_its_json_with_sorted_keys() -> None:
    assert json_digest(VALUE) == hashlib.sha256(SPACED).hexdigest()
    compact = SPACED.replace(b", ", b",").replace(b": ", b":")
    assert json_digest(VALUE, compact=True) == hashlib.sha256(compact).hexdigest()
    unsorted = b'{"b": [1, 2.5, null, "\\u00e9"], "a": {"y": true, "x": ""}}'
    assert json_digest(VALUE, sort_keys=False) == hashlib.sha256(unsorted).hexdigest()


def test_digests_are_sha256_in_hexadecimal(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    assert sha256(b"abc") == file_digest(tmp_path / "file") == known
