"""What a release needs agrees with the code: packages, versions, workflows, container, manifests."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from servers import free_port
from waiting import until

import polyaforest

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
YAML_FILES = [
    *sorted((ROOT / ".github").rglob("*.yml")),
    *sorted((ROOT / "deploy").rglob("*.y*ml")),
    ROOT / "CITATION.cff",
    ROOT / ".pre-commit-config.yaml",
]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


def documents(path):
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def steps_of(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def instructions(kind):
    return re.findall(rf"^{kind} (.*)$", DOCKERFILE, re.M)


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_yaml_files_are_well_formed(path):
    assert all(documents(path))


def test_the_version_is_the_same_everywhere():
    version = polyaforest.__version__
    assert documents(ROOT / "CITATION.cff")[0]["version"] == version
    assert documents(ROOT / "deploy" / "conda" / "recipe.yaml")[0]["context"]["version"] == version
    images = re.findall(r"image: polyaforest:(\S+)", (ROOT / "deploy" / "kubernetes" / "polyaforest.yml").read_text())
    assert images == [version]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_nothing_but_make_targets(path):
    (workflow,) = documents(path)
    assert workflow["permissions"] == {"contents": "read"}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    for step in steps_of(workflow):
        assert ("run" in step) != ("uses" in step)
        if "run" in step:
            found = re.fullmatch(r"make (\S+|\$\{\{ matrix\.target \}\}) PYTHON=python", step["run"])
            assert found is not None, step
            jobs = workflow["jobs"].values()
            named = [name for job in jobs for name in job.get("strategy", {}).get("matrix", {}).get("target", [])]
            assert set(named if "matrix" in found[1] else [found[1]]) <= set(targets)


def test_workflows_test_the_supported_versions_of_python():
    (workflow,) = documents(ROOT / ".github" / "workflows" / "test.yml")
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M)
    assert tested == named
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_the_recipe_has_the_dependencies_of_the_package():
    (recipe,) = documents(ROOT / "deploy" / "conda" / "recipe.yaml")
    wanted = sorted(re.sub("(?=>)", " ", requirement) for requirement in PROJECT["dependencies"])
    assert sorted(recipe["requirements"]["run"]) == sorted([f"python {PROJECT['requires-python']}", *wanted])


def required(extra=None):
    """Requirements of an extra and of the extras that it includes; of the package without one."""
    for text in PROJECT["dependencies"] if extra is None else EXTRAS[extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            for included in requirement.extras:
                yield from required(included)
        else:
            yield requirement


def locked():
    """Versions by name, several where they differ by platform or version of Python."""
    versions = {}
    for line in (ROOT / "requirements-dev.lock").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            pinned = Requirement(line)
            ((pin,),) = [pinned.specifier]
            assert pin.operator == "==", line
            versions.setdefault(canonicalize_name(pinned.name), []).append(pin.version)
    return versions


def test_the_lock_file_has_every_direct_dependency_in_a_version_that_suits():
    versions, direct = locked(), [*required(), *required("dev"), *required("docs")]
    assert len(direct) > 50
    for requirement in direct:
        found = versions.get(canonicalize_name(requirement.name), [])
        assert found, f"{requirement} is not in the lock file: run make lock"
        assert all(version in requirement.specifier for version in found), f"{requirement}, locked: {found}"


def test_the_lock_file_names_no_address_or_path():
    text = (ROOT / "requirements-dev.lock").read_text("utf-8")
    assert not re.search(r"://|/|@|--", text)


def test_the_docs_list_the_extras_of_users():
    page = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8")
    of_developers = {"bench", "dev", "docs", "fuzz"}
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.M)) == set(EXTRAS) - of_developers


def test_extras_that_the_docs_name_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    installs = re.compile(r"pip install \"(?:polyaforest|\.)\[([\w,-]+)\]")
    named = {
        extra for page in pages for names in installs.findall(page.read_text("utf-8")) for extra in names.split(",")
    }
    assert {"service", "plots", "onnx"} <= named <= set(EXTRAS)


def test_files_that_the_container_needs_exist_and_are_sent():
    sources = [name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]]
    assert sources
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for name in sources:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored


def test_files_that_compose_mounts_exist():
    folder = ROOT / "deploy" / "compose"
    (compose,) = documents(folder / "compose.yml")
    mounts = [volume.split(":")[0] for service in compose["services"].values() for volume in service.get("volumes", [])]
    files = [mount for mount in mounts if mount.startswith(".")]
    assert len(files) == 6
    assert all((folder / file).is_file() for file in files)
    assert {mount for mount in mounts if not mount.startswith(".")} == set(compose["volumes"])
    (prometheus,) = documents(folder / "prometheus.yml")
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == ["polyaforest:8420"]


def test_the_manifests_fit_together():
    config, service, stateful = documents(ROOT / "deploy" / "kubernetes" / "polyaforest.yml")
    pod = stateful["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert stateful["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (
        ports[service["spec"]["ports"][0]["targetPort"]]
        == tomllib.loads(config["data"]["polyaforest.toml"])["server"]["port"]
    )
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    user = pod["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}" in DOCKERFILE


def check_config(cli, path, folder, monkeypatch):
    monkeypatch.setenv("POLYAFOREST_ADMIN_TOKEN", "a" * 24)
    code, out, err = cli("serve", "--check", path, "--host", "0.0.0.0", "--data", folder)
    assert code == 0, out + err


def test_the_service_accepts_the_configurations(cli, tmp_path, monkeypatch):
    check_config(cli, ROOT / "deploy" / "polyaforest.toml", tmp_path / "data", monkeypatch)
    manifests = documents(ROOT / "deploy" / "kubernetes" / "polyaforest.yml")
    (tmp_path / "k.toml").write_text(manifests[0]["data"]["polyaforest.toml"], "utf-8")
    check_config(cli, tmp_path / "k.toml", tmp_path / "data", monkeypatch)


# ---- slow: real packages and environments --------------------------------------------------------------------------


def run(command, **given):
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **given)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def interpreters():
    """Interpreters of the supported versions on this machine: this one, and others by name or from pyenv."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    for version in re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M):
        homes = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        named = shutil.which(f"python{version}")
        works = (
            named is not None and subprocess.run([named, "-c", ""], capture_output=True, check=False).returncode == 0
        )
        found.setdefault(version, named if works else next(iter(map(str, homes)), None))
    return [pytest.param(path, id=version) for version, path in found.items() if path is not None]


def outside_checkout():
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT])
    return folder


@pytest.mark.slow
def test_the_packages_pass_the_checks_and_are_lean(packages):
    files = sorted(packages.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    assert all(file.stat().st_size < 2e6 for file in files)
    run([sys.executable, "-m", "twine", "check", "--strict", *files])
    run([sys.executable, "-m", "check_wheel_contents", files[0]])
    with tarfile.open(files[1]) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    assert tops == {
        "src",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "CITATION.cff",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", interpreters())
def test_the_wheel_works_in_a_new_environment_away_from_the_checkout(packages, tmp_path, interpreter):
    run([interpreter, "-m", "venv", tmp_path / "venv"], env=outside_checkout())
    (wheel,) = packages.glob("*.whl")
    program = tmp_path / "venv" / "bin" / "polyaforest"
    here = {"env": {**outside_checkout(), "POLYAFOREST_CACHE_DIR": str(tmp_path / "cache")}, "cwd": tmp_path}
    run([tmp_path / "venv" / "bin" / "pip", "install", "--quiet", wheel], **here)
    assert run([program, "--version"], **here).split() == ["polyaforest", polyaforest.__version__]
    run([program, "demo"], **here)
    assert "rows stand out" in run([program, "detect", "server-metrics.csv"], **here)
    run([program, "fit", "server-metrics.csv", "--batch", "-m", "model.mpf"], **here)
    run([program, "export", "model.mpf", "--to", "model.json", "--scorer", "python"], **here)
    columns = [column["name"] for column in json.loads((tmp_path / "model.json").read_text())["columns"]]
    row = json.dumps(dict.fromkeys(columns, 1))
    score, _, _ = json.loads(run([interpreter, "scorer.py", "model.json"], input=row, **here))
    assert score < 0


@pytest.mark.slow
def test_the_steps_of_the_container_work_in_a_clean_directory(tmp_path):
    """Where no image can be built: the same commands, with other places for its directories."""
    source, opt, data = tmp_path / "source", tmp_path / "opt", tmp_path / "data"
    for name in instructions("COPY")[0].split()[:-1]:
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    port = free_port()

    def moved(text):
        return text.replace("/opt", str(opt)).replace("/data", str(data)).replace("8420", str(port))

    build = re.split(r"^FROM .*$", DOCKERFILE, flags=re.M)[1]
    settings = dict(part.split("=", 1) for part in shlex.split(moved(re.findall(r"^ENV (.*)$", build, re.M)[0])))
    environment = {**outside_checkout(), **settings, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in re.findall(r"^RUN (.*)$", build, re.M):
        run(["sh", "-c", moved(command)], cwd=source, env=environment)
    arguments = [moved(part) for part in json.loads(instructions("CMD")[-1])]
    configuration = tmp_path / "polyaforest.toml"
    configuration.write_text(moved((ROOT / "deploy" / "polyaforest.toml").read_text("utf-8")), "utf-8")
    arguments[1] = str(configuration)
    data.mkdir()
    environment |= {"POLYAFOREST_ADMIN_TOKEN": "a" * 24, "PATH": f"{opt}/polyaforest/bin:{os.environ['PATH']}"}
    (entry,) = json.loads(instructions("ENTRYPOINT")[0])
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([entry, *arguments], env=environment, cwd=data, stdout=log, stderr=log)
    try:
        check = json.loads(moved(re.search(r"^HEALTHCHECK .*CMD (.*)$", DOCKERFILE, re.M)[1]))
        until(lambda: server.poll() is not None or is_healthy(check, environment))
        assert server.poll() is None, (tmp_path / "log").read_text()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {'a' * 24}"}
        )
        with urllib.request.urlopen(request) as answer:
            assert b"polyaforest_stream_up" in answer.read()
    finally:
        server.terminate()
        server.wait()


def is_healthy(check, environment):
    return subprocess.run(check, env=environment, capture_output=True, check=False).returncode == 0
