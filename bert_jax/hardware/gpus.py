"""NVIDIA GPUs by name and their hosts: l4-1, h100-8, 4xa100-80g-8 (four hosts of eight).

The numbers are what the compiler reads from a GPU where there is one (`cudaGetDeviceProperties`).
Sources: NVIDIA's data sheets and white papers, checked against the target configurations of
openxla/xla (xla/backends/gpu/target_config/specs); of A10G and RTX 4090 device queries that users
published; of L4 its data sheet, with the memory of A10G, which has the same 24 GB with ECC too.
Network of L4 and A10G: Google's page of the G2 machines, AWS' pages of the G5 and G6 instances.
Clocks are the highest, so that a bound of the time stays one.
"""

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bert_jax.errors import UserError, nearest_name
from bert_jax.hardware.accelerators import BY_DEVICE_KIND, GBIT, Accelerator

# Names of the share of the memory that JAX takes; it refuses both together.
FRACTION_VARIABLE, OLDER_VARIABLE = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
DEFAULT_FRACTION = 0.75  # of JAX
# With "platform", JAX takes memory as it needs it, and reads no share.
ALLOCATOR_VARIABLE = "XLA_PYTHON_CLIENT_ALLOCATOR"
_UNIFIED = "TF_FORCE_UNIFIED_MEMORY"  # lets XLA take more than the GPU has, from the host's memory
_MAX_HOSTS = 512
_MIB, _KIB = 2**20, 2**10


@dataclass(frozen=True)
class GpuModel:
    """A GPU as its driver describes it.

    device_kind: of its JAX devices. capability: the compute capability. cores: streaming
    multiprocessors. units: float32 units of a core. clock: GHz. memory, l2: bytes.
    shared: bytes of a core's shared memory. threads: of a core at once.
    sizes: GPUs of a host, from few to many. links: network between them.
    linked_hosts: hosts that the same links join, one but for racks joined by NVLink.
    network: Gbit/s to other hosts of the fastest host that is sold with each of `sizes`, None where
        none is; () if its accelerator has the same of every host.
    """

    name: str
    device_kind: str
    capability: tuple[int, int]
    cores: int
    units: int
    clock: float
    memory: int
    l2: int
    shared: int
    threads: int
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    links: str = "NVLink"
    linked_hosts: int = 1
    network: tuple[float | None, ...] = ()

    @property
    def accelerator(self) -> Accelerator:
        return BY_DEVICE_KIND[self.device_kind]

    @property
    def usable_bytes(self) -> int:
        """Memory that JAX takes for its arrays at most; UserError as `memory_fraction`."""
        return round(memory_fraction()[0] * self.memory)


def memory_fraction() -> tuple[float, str]:
    """Returns the share of a GPU's memory that JAX takes at most, and the variable that says so; ""
    for JAX's default.

    Raises:
        UserError: JAX would refuse its variables, or the share is none.
    """
    named = [name for name in (FRACTION_VARIABLE, OLDER_VARIABLE) if os.environ.get(name)]
    if len(named) > 1:
        raise UserError(f"{' and '.join(named)}: JAX takes one of them; unset {OLDER_VARIABLE}")
    found = DEFAULT_FRACTION, ""
    for name in named:
        try:
            share = float(os.environ[name])
        except ValueError:
            share = 0.0
        is_unified = os.environ.get(_UNIFIED, "").lower() in ("1", "true")
        if not (0 < share <= 1 or (is_unified and 1 < share < math.inf)):
            raise UserError(
                f"{name}={os.environ[name]}: not a share of the memory; give one from .1 to .95, "
                f"or unset it (above 1 only with {_UNIFIED}=1)"
            )
        found = share, name
    if os.environ.get(ALLOCATOR_VARIABLE, "").lower() == "platform":
        return 1.0, ALLOCATOR_VARIABLE
    return found


_A100 = (8, 0), 108, 64, 1.41
_ADA = 100 * _KIB, 1536
_HOPPER = 50 * _MIB, 228 * _KIB, 2048
MODELS = {
    row.name: row
    for row in (
        GpuModel(
            "a100-40g", "NVIDIA A100-SXM4-40GB", *_A100, 42_331_013_120, 40 * _MIB, 164 * _KIB,
            2048, sizes=(1, 2, 4, 8, 16),
        ),
        GpuModel(
            "a100-80g", "NVIDIA A100-SXM4-80GB", *_A100, 85_100_068_864, 40 * _MIB, 164 * _KIB, 2048
        ),
        GpuModel(
            "h100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 84_942_979_072, *_HOPPER
        ),
        GpuModel(
            "h100-pcie", "NVIDIA H100 PCIe", (9, 0), 114, 128, 1.755, 84_942_979_072, *_HOPPER,
            links="PCIe",
        ),
        GpuModel("h200", "NVIDIA H200", (9, 0), 132, 128, 1.98, 151_397_597_184, *_HOPPER),
        GpuModel(
            "b200", "NVIDIA B200", (10, 0), 148, 128, 1.965, 191_514_411_008, 132_644_864,
            228 * _KIB, 2048,
        ),
        GpuModel(
            "gb200", "NVIDIA GB200", (10, 0), 152, 128, 2.062, 197_897_748_480, 135_528_448,
            228 * _KIB, 2048, sizes=(1, 2, 4), linked_hosts=18,
        ),
        GpuModel(
            "l4", "NVIDIA L4", (8, 9), 58, 128, 2.04, 22_587 * _MIB, 48 * _MIB, *_ADA, links="PCIe",
            network=(32, 32, 50, 100),
        ),
        GpuModel(
            "a10g", "NVIDIA A10G", (8, 6), 80, 128, 1.71, 22_587 * _MIB, 6 * _MIB, *_ADA,
            links="PCIe", network=(25, None, 50, 100),
        ),
        GpuModel(
            "rtx4090", "NVIDIA GeForce RTX 4090", (8, 9), 128, 128, 2.52, 24_563 * _MIB, 72 * _MIB,
            *_ADA, links="PCIe",
        ),
        GpuModel(
            "a6000", "NVIDIA RTX A6000", (8, 6), 84, 128, 1.8, 51_041_271_808, 6 * _MIB, *_ADA,
            links="PCIe",
        ),
    )
}  # fmt: skip
ALIASES = {
    "a100-40gb": "a100-40g", "a100-80gb": "a100-80g", "h100-sxm": "h100", "h100-80g": "h100",
    "h200-sxm": "h200", "b200-sxm": "b200", "rtx-4090": "rtx4090", "4090": "rtx4090",
    "rtx-a6000": "a6000", "rtxa6000": "a6000",
    # As JAX names them, less "NVIDIA ".
    **{"-".join(row.device_kind.lower().split()[1:]): row.name for row in MODELS.values()},
}  # fmt: skip
_FIRST_WORDS = {name.partition("-")[0] for name in MODELS}
# Names of GPUs that CUDA 13 has dropped, by compute capability, and of what is not NVIDIA's.
_DROPPED = {
    "7.0": "v100s?|titan-?v",
    "6.0": "p100|gp100",
    "6.1": "p40?|p[1-6][02]00|gtx-?10[0-9]0(-?ti)?|1080(-?ti)?|titan-?xp",
    "5.2": "m40?|m60|m[1-6]000|gtx-?9[0-9]0(-?ti)?|titan-?x",
    "3.7": "k80",
    "": "mi[0-9]+[a-z]*|radeon.*|(habana-?)?gaudi.*|(aws-?)?(trainium|inferentia)[0-9]*",
}
# How GPUs of NVIDIA are named that have no row here; TPUs and others are never named so.
_NVIDIA = re.compile("(quadro|geforce|titan|[gr]tx|[gt]?[abhlt][0-9]|g[bh][0-9]|[2-5]0[5-9]0).*")


@dataclass(frozen=True)
class GpuHosts:
    """One or more equal hosts with GPUs. per_host: GPUs of a host. hosts: their number."""

    model: GpuModel
    per_host: int
    hosts: int = 1

    @property
    def name(self) -> str:
        times = f"{self.hosts}x" if self.hosts > 1 else ""
        return f"{times}{self.model.name}-{self.per_host}"

    @property
    def devices(self) -> int:
        """JAX devices of all hosts, which are the GPUs."""
        return self.hosts * self.per_host

    @property
    def chips(self) -> int:
        """The GPUs."""
        return self.devices

    @property
    def accelerator(self) -> Accelerator:
        """The GPU, with its part of the network of such a host."""
        row, network = self.model.accelerator, self.model.network
        if not network:
            return row
        whole = network[self.model.sizes.index(self.per_host)]
        return dataclasses.replace(row, dcn_bandwidth=whole and whole / self.per_host * GBIT)

    @property
    def usable_bytes(self) -> int:
        return self.model.usable_bytes

    @property
    def networks(self) -> Mapping[str, str]:
        """Names of the links within and between hosts, by network of `aot.cost.collectives`."""
        return {"ici": self.model.links, "dcn": "between hosts"}

    @property
    def linked(self) -> int:
        """GPUs, in the order of JAX's devices, that NVLink or PCIe joins."""
        return self.per_host * min(self.hosts, self.model.linked_hosts)


def known(name: str) -> bool:
    """Returns whether a name, with or without numbers around it, means a GPU: one that is known
    here, a dropped one, or another of NVIDIA."""
    kind = _words(name)[1]
    has_known = not _FIRST_WORDS.isdisjoint(kind.split("-"))  # dgx-h100
    return has_known or bool(_NVIDIA.fullmatch(kind) or why_dropped(name))


def find(name: str) -> GpuHosts:
    """Returns the hosts of a name like h100-8 or 4xa100-80g-8.

    Raises:
        ValueError: there is no such GPU or no such host; says the nearest, or why.
    """
    hosts, kind, size = _words(name)
    if why := why_dropped(name):
        raise ValueError(why)
    model = MODELS.get(ALIASES.get(kind, kind))
    if model is None:
        before, _, after = kind.partition(":")  # h100:8, as SkyPilot writes it
        if (other := MODELS.get(ALIASES.get(before, before))) and after.isdecimal():
            form = f"{other.name}-{after}"
            raise ValueError(f"{name}: give the GPUs of a host after a dash, as in {form}")
        raise ValueError(f'"{name}" is not a GPU that is known here; {_nearest(before)}')
    if not size.isdecimal():
        form = f"{model.name}-8"
        if hosts in model.sizes[1:]:  # 8xh100
            form = f"{model.name}-{hosts} (a number in front is one of hosts)"
        raise ValueError(f"{name}: give the GPUs of a host after a dash, as in {form}")
    if not 1 <= hosts <= _MAX_HOSTS:
        raise ValueError(f"{name}: give 1 to {_MAX_HOSTS} hosts, as in 2x{model.name}-8")
    if hosts > model.linked_hosts and hosts % model.linked_hosts:
        raise ValueError(
            f"{name}: {model.linked_hosts} hosts with {model.name} make a rack; give fewer, or a "
            "multiple"
        )
    if int(size) not in model.sizes:
        smaller = [n for n in model.sizes if n < int(size)][-1:]
        larger = [n for n in model.sizes if n > int(size)][:1]
        both = " and ".join(f"{model.name}-{n}" for n in smaller + larger)
        more = f"; several hosts are 2x{model.name}-{model.sizes[-1]}" if not larger else ""
        raise ValueError(f"{name} does not exist; nearest: {both}{more}")
    return GpuHosts(model, int(size), hosts)


def _nearest(kind: str) -> str:
    """Returns a hint with the GPUs that a name may mean, or with all."""
    words, letters = kind.split("-"), re.split("[^a-z]", kind)[0]  # of a100-sxm, of a40
    memory = re.search(r"-([0-9]+g)b?\b", kind)  # of a100-sxm-80gb
    if inside := [name for name in MODELS if f"-{name}-" in f"-{kind}-"]:
        return f"did you mean {max(inside, key=len)}?"
    if longer := [name for name in MODELS if name.partition("-")[0] in words]:
        with_memory = [name for name in longer if memory and name.endswith(f"-{memory[1]}")]
        return f"did you mean {' or '.join(with_memory or longer)}?"
    if near := nearest_name(kind, [*MODELS, *ALIASES]):
        return f"did you mean {ALIASES.get(near, near)}?"
    if alike := [name for name in MODELS if re.split("[^a-z]", name)[0] == letters]:
        return f"nearest: {', '.join(alike)}"
    return f"valid: {', '.join(MODELS)}"


def why_dropped(name: str) -> str:
    """Returns the message about an accelerator that JAX for CUDA no longer or never supported; ""
    for any other name, and for v100-sxm2-32gb as for v100."""
    plain = "-".join(_words(name)[1:])  # gtx-1080 ends with a number
    for capability, names in _DROPPED.items():
        if words := re.fullmatch(rf"(?:(?:tesla|quadro|geforce)-?)?({names})(-.*)?", plain):
            if not capability:
                return (
                    f"{name}: not a GPU of NVIDIA, which JAX for CUDA needs; give one, such as h100"
                )
            return (
                f"{name}: CUDA 13, which JAX's GPU plugin is built with, no longer compiles for "
                f"{words[1].upper()} (compute capability {capability}); the oldest here is "
                "a100-40g"
            )
    return ""


def _words(name: str) -> tuple[int, str, str]:
    """Returns the hosts, the GPU and the number of GPUs that a name gives; "" if it gives none."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    words = re.fullmatch("(?:([0-9]+)x)?(?:nvidia-)?(?:tesla-)?(.*?)(?:-([0-9]+))?", plain)
    assert words is not None  # it matches any text
    hosts, kind, size = words.groups()
    if f"{kind}-{size}" in (*MODELS, *ALIASES):  # rtx-4090
        kind, size = f"{kind}-{size}", ""
    return int(hosts or 1), kind, size or ""
