"""The page of `bert-jax compile --html`: plots and tables of a step's memory and time."""

from bert_jax.aot import backends, report_sections
from bert_jax.aot.report_data import Report
from bert_jax.reporting import sections
from bert_jax.reporting.html import Page
from bert_jax.reporting.run_facts import model_facts, now
from bert_jax.runtime.versions import version
from bert_jax.storage.host_name import host_name


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
    backend = backends.of(report.target)
    if report.fits:
        command = backend.train_command(report.target, words)
        page.commands([(f"Train on {backend.place}:", command)])
    sections.add(page, report_sections.of_phases(report))
    page.save(path)
