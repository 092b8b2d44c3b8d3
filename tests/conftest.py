"""Fixtures of the whole suite: one tiny model, and for the modules that ask for it one Ray, and a browser."""

import os
import shutil
import sys

# Before torch or Ray start their threads and workers. Several processes share few cores here: threads that wait must
# not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Where this is set, each of hundreds of processes would compile the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import pytest  # noqa: E402

from tests.helpers.models import tiny_model  # noqa: E402

#: Seconds for a slow test: its processes may share two cores with those of two others.
SLOW_TIMEOUT_S = 900
#: Files with one test of minutes. Where processes share the files, they begin with these: pytest-xdist queues another
#: file behind such a test, and at the end of a tier that one would wait while other processes have nothing to do.
LONGEST = ("test_gpu_check.py", "test_several_learners.py", "test_run_screen.py", "test_new.py")
#: Folders whose files take longest, the longest first. After the files that share one Ray, lest it is started again and
#: again, come these, so that no long file begins last.
SLOW_FOLDERS = ("tuned_examples", "release", "integration", "engine", "learner", "commands")
#: The only file of the fast tier that starts Ray: a whole iteration.
FAST_WITH_RAY = "test_record.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "packages" not in (config.option.markexpr or ""):
        left_out = [item for item in items if item.get_closest_marker("packages")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if "ray_cluster" in item.fixturenames and item.path.name != FAST_WITH_RAY:
            item.add_marker("slow")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    with_ray = {item.path for item in items if "ray_cluster" in item.fixturenames}
    ranks = {name: rank for rank, name in enumerate(SLOW_FOLDERS)}

    def rank(item: pytest.Item) -> tuple[bool, bool, int]:
        of_folder = ranks.get(item.path.parent.name, len(ranks))
        return item.path.name not in LONGEST, item.path not in with_ray, of_folder

    items.sort(key=rank)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> str:
    """A tiny random Llama with tied embeddings and a byte tokenizer."""
    return tiny_model(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module", autouse=True)
def no_ray_of_others(request) -> None:
    """A module begins without Ray unless a test of it asks for the one that modules share."""
    asks = any("ray_cluster" in item.fixturenames for item in request.session.items if item.path == request.path)
    if "ray" in sys.modules and not asks:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="module")
def ray_cluster() -> None:
    """Ray with two CPUs."""
    from tests.helpers.clusters import join_shared_ray

    join_shared_ray()


@pytest.fixture
def built():
    """`built(config)` -> its algorithm, which is stopped when the test has ended."""
    algorithms = []

    def build(config):
        algorithms.append(config.build_algo())
        return algorithms[-1]

    yield build
    for algorithm in algorithms:
        algorithm.stop()


@pytest.fixture
def unknown_cluster(monkeypatch) -> None:
    """Validation as before a cluster is joined that is not known: nothing limits what a configuration may ask for."""
    monkeypatch.setattr("rllib_arpo.validation.resources.ray.is_initialized", lambda: False)
    monkeypatch.setattr("rllib_arpo.validation.resources.machine_of_next_ray", lambda: None)


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api")
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        pytest.skip("Chromium is not installed: pages are not opened.")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=executable, chromium_sandbox=os.geteuid() != 0, args=["--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture(autouse=True, scope="module")
def process_as_before():
    """Takes back vLLM's LD_PRELOAD, with which commands cannot load torch, and Tune's change to a trial's folder."""
    names, folder = ("LD_PRELOAD", "TUNE_ORIG_WORKING_DIR"), os.getcwd()
    before = {name: os.environ[name] for name in names if name in os.environ}
    yield
    os.chdir(folder)
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(before)
