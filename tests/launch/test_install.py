"""What an agent installs on a host: a Python, an environment, and what it says where it cannot."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bert_jax.launch.tpu.agent import install
from bert_jax.launch.tpu.agent.install import Installer, InstallError, find_python


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """Makes a package that pip installs; returns its digest."""
    path, about = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    files = files | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = 0o100755 << 16  # scripts stay programs
            archive.writestr(entry, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.processes
def test_an_environment_is_installed_once(tmp_path, monkeypatch):
    requirements = tmp_path / "tpu.txt"
    digest = wheel(tmp_path, "hosted", "1.0", {"hosted.py": "x = 7\n"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    home, said = tmp_path / "home", []
    home.mkdir()
    with (tmp_path / "log").open("w") as log:
        installer = Installer(home, log.fileno(), said.append)
        requirements.write_text(f"hosted==1.0 --hash=sha256:{'0' * 64}\n")
        with pytest.raises(InstallError, match="ended with 1"):
            installer.environment(requirements, "1.0")
        requirements.write_text(f"hosted==1.0 --hash=sha256:{digest}\n")
        python = installer.environment(requirements, "1.0")
        assert installer.environment(requirements, "1.0") == python
    assert "DO NOT MATCH THE HASHES" in (tmp_path / "log").read_text()
    assert len(said) == 2
    done = subprocess.run([python, "-c", "import hosted; print(hosted.x)"], capture_output=True)
    assert done.stdout == b"7\n"


@pytest.mark.slow
@pytest.mark.processes
def test_uv_is_installed_with_its_hash(tmp_path):
    """From the package index, as on a host whose Python is too old."""
    with (tmp_path / "log").open("w") as log:
        uv = Installer(tmp_path, log.fileno(), print).uv()
    done = subprocess.run([uv, "--version"], capture_output=True, text=True)
    assert done.stdout.split()[:2] == ["uv", install.UV.split()[0].removeprefix("uv==")]


@pytest.mark.processes
def test_the_python_that_is_found_can_run_the_packages():
    done = subprocess.run([find_python(), "--version"], capture_output=True, text=True)
    assert done.stdout.startswith(("Python 3.11", "Python 3.12", "Python 3.13"))


def test_a_full_disk_is_said_before_anything_is_installed(tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10**12, 10**12 - 10**9, 10**9)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InstallError, match=r"1\.0 GB free, 6\.4 needed"):
        Installer(tmp_path, 1, print).environment(tmp_path / "tpu.txt", "1.0")


# In the place of uv: notes what it is asked for, and knows one Python.
UV = """#!/bin/sh
echo "$UV_PYTHON_INSTALL_DIR $*" >> {folder}/asked
[ "$2" = {fails} ] && exit 2
[ "$2" = find ] && echo {python}
exit 0
"""


class OldHost:
    """A host whose only Python is too old, with a package index that has `uv`."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder, self.home, self._patch = folder, folder / "home", patch
        (folder / "bin").mkdir()
        self.home.mkdir()
        for name in ("python3", "python3.10"):
            (folder / "bin" / name).write_text("#!/bin/sh\necho 3.10.12\n")
            (folder / "bin" / name).chmod(0o755)
        patch.setenv("PATH", f"{folder / 'bin'}:/bin")
        patch.setattr(install, "_FOUND", ("python3", "python3.10"))
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setenv("PIP_NO_INDEX", "1")

    def has_uv(self, fails: str = "nothing") -> None:
        """fails: the subcommand that does."""
        text = UV.format(folder=self.folder, python=sys.executable, fails=fails)
        digest = wheel(self.folder, "uv", "9.0", {"uv-9.0.data/scripts/uv": text})
        self._patch.setattr(install, "UV", f"uv==9.0 --hash=sha256:{digest}\n")

    def installs(self) -> Path:
        """The Python of an environment without packages."""
        requirements = self.folder / "tpu.txt"
        requirements.write_text("")
        with (self.folder / "log").open("w") as log:
            return Installer(self.home, log.fileno(), print).environment(requirements, "1.0")

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def old_host(tmp_path, monkeypatch):
    return OldHost(tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.processes
def test_uv_brings_a_python_to_a_host_whose_own_is_too_old(old_host, capsys):
    old_host.has_uv()
    python = old_host.installs()
    kept = old_host.home / "uv-python"  # a service may have no home folder
    assert old_host.asked() == [
        f"{kept} python install 3.12", f"{kept} python find --managed-python 3.12",
    ]  # fmt: skip
    assert "; uv brings 3.12" in capsys.readouterr().out
    done = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True)
    assert Path(done.stdout.decode().strip()) == python.parents[1]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("fails", "line"),
    [
        ("install", r"^\S+/uv python install 3\.12 … ended with 2$"),
        ("find", r"^\S+/uv python find --managed-python 3\.12 ended with 2$"),
    ],
)
def test_a_python_that_uv_cannot_bring_is_one_line(old_host, fails, line):
    old_host.has_uv(fails)
    with pytest.raises(InstallError, match=line):
        old_host.installs()
    assert not list(old_host.home.glob("python-*"))


@pytest.mark.slow
@pytest.mark.processes
def test_a_host_whose_index_has_no_uv_says_so(old_host):
    with pytest.raises(InstallError, match=r"pip install --disable-pip-version-check … ended with"):
        old_host.installs()
