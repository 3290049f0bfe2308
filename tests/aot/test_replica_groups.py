"""The groups of devices of a collective: every form of their text, and the mesh axes that they
span."""

import pytest

from bert_jax.aot.hlo import replica_groups

MESH = {"slice": 1, "data": 4, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[2,2,2]T(2,1,0)", ((0, 4, 2, 6), (1, 5, 3, 7))),
        ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=4] {'a','b'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=4], device_ids=(3,1,2,0) {'a'}", ((3, 1, 2, 0),)),
    ],
)
def test_replica_groups_in_every_form(text: str, groups: tuple) -> None:
    assert replica_groups.parse(text, 8) == groups


def test_replica_groups_in_another_form_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"unknown format: <0,1>"):
        replica_groups.parse("<0,1>", 8)


@pytest.mark.parametrize(
    ("text", "axes", "whole"),
    [
        ("[8,2]<=[16]", ("tensor",), True),
        ("[8,2]<=[8,2]T(1,0)", ("fsdp",), True),  # every second
        ("mesh['a'=4,'b'=4] {'a'}", ("data",), True),
        ("mesh['a'=8,'b'=2] {'a'}", ("data", "fsdp"), True),
        ("{}", ("data", "fsdp", "tensor"), True),
        ("mesh['a'=2,'b'=8] {'a'}", ("data",), False),  # 0 and 8: two of four
    ],
)
def test_groups_are_named_by_the_axes_of_the_mesh(text: str, axes: tuple, whole: bool) -> None:
    groups = replica_groups.parse(text, 16)
    assert replica_groups.axes(groups, MESH) == axes
    assert replica_groups.spans(groups, axes, MESH) == whole
