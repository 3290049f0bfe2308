"""Options of sbatch that a user may add, and those that restarts, logs and `stop` rely on."""

import re

import pytest
from launch_jobs import job

from bert_jax.errors import UserError
from bert_jax.launch.restarts import Limits
from bert_jax.launch.slurm.backend import Slurm
from bert_jax.launch.slurm.options import check_time, check_variables

RELIED_ON = [
    "--signal=USR1@60", "--signal", "--no-requeue", "--requeue", "--export=NONE", "--export-file=f",
    "--array=1-4", "--ntasks=2", "--ntasks-per-node=2", "--ntasks-per-gpu=1", "--output=x",
    "--error=x", "--dependency=afterok:1", "--wrap=hostname", "--parsable", "--job-name=x",
    "--open-mode=truncate", "--comment=x", "--chdir=/tmp", "--time=1", "--partition=x",
    "--account=x", "--nodes=2", "--gpus-per-node=2", "--gpus-per-task=1", "--clusters=x",
    "--no-kill", "--wait", "--test-only", "--help", "--version", "--uid=0",
    "--time-min=1:00:00", "--tasks-per-node=2", "--ntasks-per-tres=1", "--gpus=4",
    "--gpus-per-socket=1", "--tres-per-task=gres/gpu:1", "--gid=0", "--get-user-env",
    "--get-user-env=10L", "--deadline=12:00", "--hold", "--immediate", "--immediate=5", "--quiet",
    "--gpu-bind=single:1", "--tres-bind=gres/gpu:closest", "--gres=gpu:8", "--gres=gpu",
    "--gres=craynetwork:1,gpu:a100:2", "--gre=gres/gpu:1", "--gres=help", "--mem-bind=help",
    "--cluster-constraint=x", "--external", "--autocomplete=x",
]  # fmt: skip
IN_SHORT = [
    "--sig=USR1",
    "--no-req",
    "--exp=NONE",
    "--arr=1",
    "--dep=x",
    "--nta=2",
    "--out=x",
    "--p=x",
]
NO_OPTIONS = ["-a1-4", "-J", "-d", "--", "", "qos=high", "--=x", "batch.sh", "-", "NONE"]
# The other options of the manual of sbatch 22.05, some of later releases, and one of a plugin.
OTHERS = [
    "--qos=high", "--mem=64G", "--constraint=a100", "--exclusive", "--gres=lscratch:100",
    "--gres=shard:1,gpuless:2", "--exclude=n1", "--nodelist=n[1-2]", "--mail-type=END",
    "--nice=100", "--hint=nomultithread", "--cpus-per-task=12", "--reservation=x",
    "--begin=now+1hour", "--licenses=a", "--mem-per-gpu=1G", "--acctg-freq=30", "--batch=x",
    "--bb=x", "--bbf=f", "--container=x", "--contiguous", "--core-spec=1", "--cores-per-socket=4",
    "--cpu-freq=high", "--cpus-per-gpu=8", "--delay-boot=1", "--distribution=block",
    "--extra-node-info=2", "--gpu-freq=high", "--gres-flags=enforce-binding", "--ignore-pbs",
    "--input=/dev/null", "--kill-on-invalid-dep=yes", "--mail-user=me", "--mcs-label=x",
    "--mem-bind=local", "--mem-per-cpu=1G", "--mincpus=4", "--network=x", "--nodefile=f",
    "--overcommit", "--oversubscribe", "--power=x", "--prefer=x", "--priority=1",
    "--profile=none", "--propagate=NONE", "--reboot", "--sockets-per-node=2", "--spread-job",
    "--switches=1", "--thread-spec=1", "--threads-per-core=1", "--tmp=1G", "--use-min-nodes",
    "--verbose", "--wait-all-nodes=1", "--wckey=x", "--extra=x", "--oom-kill-step=1",
    "--segment=2", "--container-image=x",
]  # fmt: skip


def check(*words: str, **options: object) -> None:
    Slurm(sbatch=words, **options).check(job(limits=Limits(grace=25.0, margin=15.0)))


@pytest.mark.parametrize("word", RELIED_ON)
def test_an_option_that_the_launcher_relies_on_is_refused_by_name(word):
    with pytest.raises(UserError, match=re.escape(f"--sbatch={word}: cannot be given: ")):
        check(word)


@pytest.mark.parametrize("word", IN_SHORT)
def test_sbatch_takes_the_beginning_of_a_name_so_that_is_refused(word):
    with pytest.raises(UserError, match=f"--sbatch={word}: write the option in full; .*--"):
        check(word)


@pytest.mark.parametrize("word", NO_OPTIONS)
def test_what_is_no_long_option_is_refused(word):
    with pytest.raises(UserError, match="give an option of sbatch, such as --qos=high"):
        check("--qos=high", word)


@pytest.mark.parametrize("word", OTHERS)
def test_other_options_are_passed_on(word):
    check(word)
    assert word in Slurm(sbatch=(word,)).render(job()).commands[-1]


@pytest.mark.parametrize(
    "text", ["60", "90:30", "24:00:00", "1-0", "1-12", "1-12:30", "7-00:00:00", "INFINITE", "0", ""]
)
def test_every_format_of_a_time_limit_passes(text):
    check(time=text)


@pytest.mark.parametrize(
    "text",
    ["banana", "24h", "1:2:3:4", "-1", "1-", "1-2:3:4:5", "1d", "2:", ":30", "1.5", " 60", "1_0"],
)
def test_another_format_of_a_time_limit_is_refused(text):
    with pytest.raises(UserError, match=f"--time={text}: give minutes, MINUTES:SECONDS, HOURS"):
        check(time=text)


@pytest.mark.parametrize("text", ["0:40", "0:0:1", "0-0:0:40"])
def test_a_time_limit_in_which_nothing_can_be_saved_is_refused(text):
    with pytest.raises(UserError, match="asked to save 40 s before the limit"):
        check(time=text)
    check_time("0:41", 40.0)


@pytest.mark.parametrize("options", [{"nodes": 0}, {"gpus_per_node": -1}, {"tasks_per_node": -2}])
def test_a_number_that_cannot_be_is_refused(options):
    with pytest.raises(UserError, match="give at least"):
        check(**options)


@pytest.mark.parametrize("kind", ["env", "env_from"])
def test_a_proxy_which_the_batch_script_would_unset_is_refused(kind):
    of = job(**{kind: (("https_proxy", "/proxy"),)})
    with pytest.raises(UserError, match=f"--{kind}=https_proxy=…: processes of a Slurm job"):
        Slurm().check(of)


@pytest.mark.parametrize(
    "name",
    [
        "SBATCH_EXPORT",
        "SBATCH_ARRAY_INX",
        "SBATCH_CLUSTERS",
        "SLURM_CLUSTERS",
        "SBATCH_WAIT",
        "SBATCH_GPUS",
        "SBATCH_GPUS_PER_NODE",
        "SBATCH_GPUS_PER_SOCKET",
        "SBATCH_GPU_BIND",
        "SBATCH_GET_USER_ENV",
        "SBATCH_TRES_PER_TASK",
        "SBATCH_CLUSTER_CONSTRAINT",
    ],
)
def test_a_variable_that_sbatch_takes_for_such_an_option_is_refused(name):
    with pytest.raises(UserError, match=f"{name}=x: sbatch takes it for --.*; unset it"):
        check_variables({name: "x"})
    assert check_variables({"SBATCH_QOS": "high", "SBATCH_GRES": "lscratch:1"})
    with pytest.raises(UserError, match="SBATCH_GRES=gpu:2: unset it"):
        check_variables({"SBATCH_GRES": "gpu:2"})
