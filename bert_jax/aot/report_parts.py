"""Parts that the reports of TPUs and of GPUs share: units and the table of collectives."""

from collections.abc import Mapping, Sequence

from bert_jax.aot.cost.collectives import Traffic
from bert_jax.aot.cost.memory import GIB
from bert_jax.reporting.sections import Section, Table

_NETWORKS = {"ici": "ICI", "dcn": "DCN"}


def in_units(amount: int) -> str:
    """Formats bytes in GiB, small amounts in MiB or KiB."""
    for size, unit in ((GIB, "GiB"), (2**20, "MiB")):
        if amount >= 0.1 * size:
            return f"{amount / size:,.{2 if size == GIB else 1}f} {unit}"
    return f"{amount / 1024:,.1f} KiB"


def ms(seconds: float) -> str:
    """Formats seconds as milliseconds."""
    return f"{seconds * 1e3:,.2f} ms"


def collectives_of(found: Sequence[Traffic], networks: Mapping[str, str] = _NETWORKS) -> Section:
    """Returns the collectives by kind and mesh axes; networks: their names."""
    rows = [
        (
            f"{traffic.kind} over {', '.join(traffic.axes) or 'some devices'}"
            + (", asynchronous" if traffic.asynchronous else ""),
            f"{traffic.bytes / 2**20:,.1f} MiB",
            "?" if traffic.seconds is None else ms(traffic.seconds),
            f"{traffic.runs:,}",
            networks.get(traffic.network, traffic.network),
            f"{traffic.devices:,}" + (" (a part of the axes)" if traffic.partly else ""),
        )
        for traffic in found
    ]
    header = ("collective", "bytes", "at least", "runs", "network", "devices")
    return Section("Collectives", [Table(header, rows, columns=5)])
