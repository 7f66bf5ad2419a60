"""docs/guide/large-data.md and its templates: options exist, arithmetic is what the page shows and what is sent."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise

import pytest
import torch
import yaml
from benchmarks.ranks import CASES, Count, agreement, fitted, whole
from benchmarks.sizing import Size, by_ring, n_parameters, numbers_of_moments, numbers_of_pass, report
from torch import distributed
from typer.main import get_command

from irmtv.cli import app
from paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "guide" / "large-data.md"
DEPLOY = REPOSITORY / "docs" / "deploy"
WRITTEN = [PAGE, *sorted(DEPLOY.iterdir())]
COMMAND = re.compile(r"(?:irmtv) (fit|run|predict|evaluate|diagnose) ([^\n`]*)")


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: p.name)
def test_commands_have_the_options_that_are_written(path):
    commands = get_command(app).commands
    found = COMMAND.findall(path.read_text(encoding="utf-8"))
    assert found or path.name == "torchrun-job.yaml"
    for name, words in found:
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", words)) <= known, f"irmtv {name} {words}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_slurm_script_is_bash_and_asks_for_what_its_page_says():
    subprocess.run(["bash", "-n", str(DEPLOY / "slurm.sh")], check=True)
    text = (DEPLOY / "slurm.sh").read_text(encoding="utf-8")
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, flags=re.MULTILINE))
    assert asked["signal"] == "B:TERM@180" and asked["ntasks-per-node"] == "1" and "requeue" in asked
    assert all(not line.startswith("#SBATCH") for line in text.partition("set -u")[2].splitlines())
    started = re.search(r"srun (?:.|\\\n)*?&$", text, flags=re.MULTILINE).group()
    for option in ("--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=", "--rdzv-endpoint=", "--nnodes="):
        assert option in started


def test_the_ray_job_has_the_fields_that_kuberay_reads():
    (job,) = documents("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    assert spec["entrypoint"].startswith("irmtv run ") and spec["shutdownAfterJobFinishes"] is True
    head, (workers,) = spec["rayClusterSpec"]["headGroupSpec"], spec["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    pods = [group["template"]["spec"] for group in (head, workers)]
    assert len({container["image"] for pod in pods for container in pod["containers"]}) == 1
    (mounted,) = pods[0]["containers"][0]["volumeMounts"]
    assert mounted["name"] == pods[0]["volumes"][0]["name"]
    assert all(word.startswith(mounted["mountPath"]) for word in spec["entrypoint"].split() if word[0] == "/")


def test_the_indexed_job_starts_as_many_ranks_as_torchrun_waits_for():
    service, job = documents("torchrun-job.yaml")
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    spec, name = job["spec"], job["metadata"]["name"]
    pod = spec["template"]["spec"]
    words = pod["containers"][0]["command"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert f"--nnodes={spec['completions']}" in words
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["selector"] == {"job-name": name}
    assert f"--rdzv-endpoint={name}-0.{pod['subdomain']}:29400" in words


def test_the_page_shows_what_the_arithmetic_prints():
    assert f"```text\n{report(Size())}\n```" in PAGE.read_text(encoding="utf-8")


def test_the_arithmetic():
    layers = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.Linear(7, 3), torch.nn.Linear(3, 2))
    assert n_parameters(10, (7, 3), 2) == sum(p.numel() for p in layers.parameters())
    environments, parameters = 4, 6
    risk, gradient = torch.zeros(2, environments), torch.zeros(2, environments, parameters)
    hessian, model = torch.zeros(2, environments, parameters, parameters), torch.zeros(2, parameters)
    assert numbers_of_pass(environments, parameters) == sum(t.numel() for t in (risk, gradient, hessian, model))
    assert numbers_of_moments(3, 5, 2) == 3 * ((5 + 1 + 2) ** 2 - (5 + 1) * 2 + 2)  # x'x, y'x, y'y, and y'y by target
    # a ring of 4 ranks: 3 of 4 parts on the way there, 3 on the way back
    assert by_ring(400, 4) == pytest.approx(600) and by_ring(400, 1) == 0


@pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="this torch has no gloo"
)
def test_steps_send_what_the_arithmetic_says(tmp_path):
    """On one rank, which hands over as much as each of several; `benchmarks.ranks` does this on four."""
    task, steps = whole(3000), 12
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        for case in CASES:
            count = Count()
            with count.counting():
                fitted(case, task, steps, distributed.group.WORLD)
            assert agreement(case, count.steps) == len(count.steps) == steps, case
            phases = {step.penalised for step in count.steps}
            assert phases == ({False} if case in ("erm", "groupdro") else {False, True})
            assert all(a.penalised <= b.penalised for a, b in pairwise(count.steps))
    finally:
        distributed.destroy_process_group()
