"""The files with which Ray and KubeRay start a cluster, and the table of GPUs."""

import re
import shlex
from dataclasses import replace

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from release.cluster import nodes
from rllib_arpo import ARPOConfig
from rllib_arpo.commands.doctor import load_recipe, parse_arguments, recipe_config
from rllib_arpo.doctor.budget import read_run
from rllib_arpo.policy.model_shape import ModelShape
from rllib_arpo.validation.resources import actor_bundles
from tests.docs.pages import REPOSITORY

FOLDER = REPOSITORY / "release/cluster"
#: Where the image has the repository.
IN_IMAGE = "/home/arpo/rllib_arpo/"
IMAGE = "registry.example.com/rllib-arpo:cluster"


def read(name: str) -> dict:
    return yaml.safe_load((FOLDER / name).read_text())


def test_ray_accepts_the_cluster_of_its_launcher():
    config = read("ray_up.yaml")
    validate_config(prepare_config(config))
    assert config["docker"]["image"] == IMAGE
    assert config["min_workers"] == config["max_workers"] == len(config["provider"]["worker_ips"])
    assert "--volume=/mnt/shared:/shared" in config["docker"]["run_options"]
    with pytest.raises(Exception, match="workers"):
        validate_config(prepare_config(config | {"docker": {"workers": 1}}))


def test_the_job_of_kuberay_runs_a_recipe_on_as_many_gpus_as_it_has():
    """KubeRay's own schema, which has all fields of a pod, accepted the file: CRD of RayJob, KubeRay 1.7."""
    job = read("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"].keys() == {"entrypoint", "shutdownAfterJobFinishes", "rayClusterSpec"}
    cluster = job["spec"]["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    assert cluster["headGroupSpec"]["template"] == workers["template"]
    pod = workers["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == IMAGE
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]
    [mount] = container["volumeMounts"]

    python, path, *argv = shlex.split(job["spec"]["entrypoint"])
    assert python == "python"
    recipe = load_recipe(str(REPOSITORY / path.removeprefix(IN_IMAGE)))
    args = parse_arguments(recipe, argv)
    assert all(path.startswith(f"{mount['mountPath']}/") for path in (args.model, args.data, args.index, args.output))
    config = recipe_config(recipe, args, num_gpus=0)
    gpus = (1 + workers["replicas"]) * int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert sum(bundle["GPU"] for bundle in actor_bundles(config)) == pytest.approx(gpus)


def test_the_image_and_the_job_have_the_ray_of_the_lock():
    [locked] = re.findall(r"^ray==(\S+)", (REPOSITORY / "requirements/gpu.lock").read_text(), re.MULTILINE)
    assert f'"ray[default]=={locked}"' in (FOLDER / "Dockerfile").read_text()
    assert read("rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == locked


def test_a_row_of_the_table_by_hand(model_folder):
    """10 billion parameters: 160 GB for training, 120 GB of it while engines sample, and 20 GB in each engine.

    Four learners have 40 GB each, and two would fill their GPUs. Beside an engine's 57.6 GB a learner has 14.4 GB,
    since a tenth of the GPU stays free: eight would need 15 GB each.
    """
    sizes = {"layers": 10, "hidden_size": 1024, "heads": 8, "kv_heads": 8, "head_dim": 128, "intermediate_size": 4096}
    layer, root = 99 * 10**7, 10**8
    model = ModelShape(10 * layer + root, layer, root, vocab_size=10**5, **sizes)
    run = replace(read_run(ARPOConfig().language_model(model_name_or_path=model_folder)), model=model)
    assert (nodes._shared(run, 8192), nodes._apart(run, 8192)) == ("16", "4 + 1")
