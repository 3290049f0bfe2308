"""Tests of the slice table: Cloud TPU names, and the errors for unknown slices."""

import re

import pytest

from bert_jax.hardware import slices

# name -> libtpu's topology, its chip configuration, chips, JAX devices, hosts, axes that wrap.
# From the documentation of each version and MaxText's accelerator_to_spec_map.py.
KNOWN = {
    "v2-512": ("v2:16x16", "default", 256, 512, 64, "xy"),
    "v3-8": ("v3:2x2", "default", 4, 8, 1, ""),
    "v3-32": ("v3:4x4", "default", 16, 32, 4, ""),
    "v3-1024": ("v3:16x32", "default", 512, 1024, 128, "y"),
    "v3-2048": ("v3:32x32", "default", 1024, 2048, 256, "xy"),
    "v4-8": ("v4:2x2x1", "megacore", 4, 4, 1, ""),
    "v4-128": ("v4:4x4x4", "megacore", 64, 64, 16, "xyz"),
    "v4-4096": ("v4:8x16x16", "megacore", 2048, 2048, 512, "xyz"),
    "v5e-1": ("v5e:1x1", "default", 1, 1, 1, ""),
    "v5e-8": ("v5e:2x4", "default", 8, 8, 1, ""),
    "v5e-16": ("v5e:4x4", "default", 16, 16, 4, ""),
    "v5e-128": ("v5e:8x16", "default", 128, 128, 32, "y"),
    "v5e-256": ("v5e:16x16", "default", 256, 256, 64, "xy"),
    "v5p-16": ("v5:2x2x2", "megacore", 8, 8, 2, ""),
    "v5p-32": ("v5:2x2x4", "megacore", 16, 16, 4, ""),
    "v5p-128": ("v5:4x4x4", "megacore", 64, 64, 16, "xyz"),
    "v5p-640": ("v5:4x4x20", "megacore", 320, 320, 80, "xyz"),
    "v5p-6912": ("v5:12x12x24", "megacore", 3456, 3456, 864, "xyz"),
    "v5p-12288": ("v5:16x16x24", "megacore", 6144, 6144, 1536, "xyz"),
    "v6e-8": ("v6e:2x4", "default", 8, 8, 1, ""),
    "v6e-256": ("v6e:16x16", "default", 256, 256, 64, "xy"),
    "tpu7x-8": ("tpu7x:2x2x1", "default", 4, 8, 1, ""),
    "tpu7x-64": ("tpu7x:2x4x4", "default", 32, 64, 8, ""),
    "2xv5e-256": ("v5e:16x16", "default", 512, 512, 128, "xy"),
    "4xv4-8": ("v4:2x2x1", "megacore", 16, 16, 4, ""),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_name_is_a_shape(name: str) -> None:
    found = slices.find(name)
    wraps = "".join(axis for axis, ring in zip("xyz", found.wrap, strict=True) if ring)
    assert (
        found.topology,
        found.chip_config,
        found.chips,
        found.devices,
        found.hosts,
        wraps,
    ) == KNOWN[name]
    assert found.name == name


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("v5litepod-16", "v5e-16"),
        ("2xv5litepod-64", "2xv5e-64"),
        ("V6E-8", "v6e-8"),
        ("7x-8", "tpu7x-8"),
        ("v7x-8", "tpu7x-8"),
    ],
)
def test_other_names_of_a_slice(said: str, meant: str) -> None:
    assert slices.find(said) == slices.find(meant)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v5e-17", "nearest: v5e-16 (4x4) and v5e-32 (4x8)"),
        ("v6e-1024", "v6e-1024 does not exist; nearest: v6e-256 (16x16)"),
        ("v5e-0", "nearest: v5e-1 (1x1)"),
        ("3xv5e-20", "nearest: 3xv5e-16 (4x4) and 3xv5e-32 (4x8)"),
        ("v4-4", "nearest: v4-8 (2x2x1) (its name counts cores, two per chip)"),
        ("v5e:4x4", "v5e:4x4 does not exist; 4x4 chips are v5e-16"),
        ("v5p-4x4x4", "4x4x4 chips are v5p-128"),
        ("v6e-3x5", "nearest: v6e-8 (2x4) and v6e-16 (4x4)"),
        ("0xv5e-16", "give 1 to 256 slices"),
        ("v5-16", '"v5-16" is not a TPU slice; give one of v2, v3, v4, v5e'),
        ("a100", '"a100" is not a TPU slice'),
        ("", '"" is not a TPU slice'),
        ("v5e", '"v5e" is not a TPU slice'),
        ("v5e-x", "v5e-x does not exist"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line_with_what_does(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        slices.find(name)
    assert "\n" not in str(raised.value)


def test_every_name_leads_to_its_slice_and_known_facts() -> None:
    known = [
        slices.Slice(generation, shape)
        for generation in slices.GENERATIONS.values()
        for shape in generation.shapes
    ]
    for found in known:
        assert slices.find(found.name) == found
        assert found.hosts * found.host_bounds[0] * found.host_bounds[1] == found.chips
        assert found.generation.accelerator.usable_bytes
    assert len({found.name for found in known}) == len(known)
