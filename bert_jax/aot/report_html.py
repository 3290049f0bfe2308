"""The page of `bert-jax compile --html`: plots and tables of a step's memory and time."""

from bert_jax.aot import report_sections
from bert_jax.aot.compile_report import Report
from bert_jax.hardware.gpus import GpuHosts
from bert_jax.reporting import sections
from bert_jax.reporting.html import Page
from bert_jax.reporting.run_facts import model_facts, now
from bert_jax.runtime.versions import version
from bert_jax.storage.host_name import host_name

_THERE = {False: "the slice", True: "each host"}


def save(report: Report, path: str, words: str) -> None:
    """Writes the page with a section for each phase; words: that give the config to a command."""
    page = Page(f"{report.name} compiled for {report.target.name}")
    seconds = sum(phase.compile_seconds for phase in report.phases)
    page.facts(
        {
            "config": words,
            "model": model_facts(report.config),
            **report_sections.settings(report),
            "compiled": f"{now()}, in {seconds:.0f} s, on {host_name()}",
            "software": f"{report.compiler}, bert-jax {version('bert-jax')}",
            "estimate": report_sections.whole_run(report),
        }
    )
    page.text(report_sections.note(report))
    on_gpus = isinstance(report.target, GpuHosts)
    if report.fits:
        page.commands([(f"Train on {_THERE[on_gpus]}:", launch_command(report, words))])
    sections.add(page, report_sections.of_phases(report))
    page.save(path)


def launch_command(report: Report, words: str) -> str:
    """Returns the command that trains on the target of a report; words: that give the config."""
    if isinstance(report.target, GpuHosts):
        return f"bert-jax pretrain {words} --config.data.store=… --workdir=…"
    backend, place = "tpu", "--zone=…"
    if report.target.generation.name == "tpu7x":  # not available as a queued resource
        backend, place = "gke", "--image=…"
    return (
        f"bert-jax launch {backend} run --name=… --topology={report.target.name} {place} "
        f"pretrain {words} --config.data.store=gs://… --workdir=gs://…"
    )
