"""The output of pods, with a small program in the place of kubectl."""

from pathlib import Path

import pytest

from bert_jax.launch.gke.logs import PodLogs

pytestmark = pytest.mark.processes
# Prints the file beside it and ends, as kubectl does when the connection is lost.
PROGRAM = """#!/bin/sh
echo "$*" >> {folder}/asked
cat {folder}/output
"""


class Kubectl:
    """kubectl with the output of two pods, and what it was asked for."""

    def __init__(self, folder: Path):
        self.folder, program = folder, folder / "kubectl"
        program.write_text(PROGRAM.format(folder=folder))
        program.chmod(0o755)
        self.words = [str(program), "logs"]
        self.prints()

    def prints(self, *lines: str) -> None:
        """lines: "POD SECOND TEXT"."""
        split = [line.split(" ", 2) for line in lines]
        (self.folder / "output").write_text(
            "".join(f"[pod/{p}/train] 2026-11-24T00:00:0{s}.000000000Z {t}\n" for p, s, t in split)
        )

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    return Kubectl(tmp_path)


def look(logs: PodLogs, attempt: int = 0) -> None:
    """Two looks at pods that run; the program has ended at the first."""
    logs.follow(attempt)
    logs._process.wait(60)
    logs.follow(attempt)


def test_a_lost_connection_loses_and_repeats_no_line(kubectl, capfd):
    kubectl.prints("a 1 one", "b 1 two", "a 2 three", "a 2 four")
    with PodLogs(kubectl.words, is_new=True) as logs:
        look(logs)
        kubectl.prints(
            "a 1 one", "b 1 two", "a 2 three", "a 2 four", "a 2 five", "b 1 two again", "a 3 six"
        )
        look(logs)
        kubectl.prints("a 2 four", "a 2 five", "a 2 late", "b 2 ", "a 3 six", "b 3 [x] 2026-01 y")
        assert logs.finish(0) == 0
    assert capfd.readouterr().out.splitlines() == [
        "[pod/a/train] one", "[pod/b/train] two", "[pod/a/train] three", "[pod/a/train] four",
        "[pod/a/train] five", "[pod/b/train] two again", "[pod/a/train] six",
        "[pod/b/train] ", "[pod/b/train] [x] 2026-01 y",
    ]  # fmt: skip
    assert kubectl.asked()[0] == "logs --timestamps --follow"
    assert kubectl.asked()[-1] == "logs --timestamps"


def test_output_of_pods_that_have_ended_is_asked_for_once_more(kubectl, capfd):
    """Their containers end a moment before the pods are shown as ended."""
    kubectl.prints("a 1 one")
    with PodLogs(kubectl.words, is_new=True) as logs:
        look(logs)
        logs.finish(0)
    assert len(kubectl.asked()) == 2
    assert capfd.readouterr().out == "[pod/a/train] one\n"


def test_a_launcher_that_comes_later_prints_new_lines_only(kubectl, capfd):
    """All of the next attempt, though its lines may have the times of those before."""
    with PodLogs(kubectl.words, is_new=False) as logs:
        for attempt in (2, 3):
            kubectl.prints("a 1 one")
            look(logs, attempt)
        logs.finish(3)
    first, second, _ = kubectl.asked()
    assert first == "logs --timestamps --follow --since=1s"
    assert second == "logs --timestamps --follow"
    assert capfd.readouterr().out == "[pod/a/train] one\n" * 2


def test_what_kubectl_prints_without_a_time_is_printed(kubectl, capfd):
    (kubectl.folder / "output").write_text("unable to retrieve container logs")
    with PodLogs(kubectl.words, is_new=True) as logs:
        logs.finish(0)
    assert capfd.readouterr().out == "unable to retrieve container logs\n"


def test_a_line_that_a_lost_connection_cuts_is_printed_whole(kubectl, capfd):
    kubectl.prints("a 1 one", "a 2 cut")
    output = kubectl.folder / "output"
    output.write_text(output.read_text()[:-3])
    with PodLogs(kubectl.words, is_new=True) as logs:
        look(logs)
        kubectl.prints("a 1 one", "a 2 cut")
        logs.finish(0)
    assert capfd.readouterr().out == "[pod/a/train] one\n[pod/a/train] cut\n"
