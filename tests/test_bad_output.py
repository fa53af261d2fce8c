"""The exit status after a mistake, and the files that are left on a disk that cannot be written."""

from __future__ import annotations

import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file
from toy_training import write_toy
from trials import Command, Refused, contents, process, spec, without_privileges

import zoo
from zoo.cli import run
from zoo.errors import WeightsError, ZooError
from zoo.store.files import Store


def test_a_spec_that_cannot_be(project: Path, refused: Refused) -> None:
    (project / "spec.toml").write_text(spec(n_heads="3"))
    for command in (["validate"], ["show"], ["build", "--json"]):
        told = refused(*command, "spec.toml")
        assert told.startswith("spec.toml:8:11: error: d_model = 8 is not divisible")


CLOSED = {
    "build spec.toml -o closed/out": (
        "closed/out/model.safetensors.index.json: error: cannot be read: "
    ),
    "push made to --license MIT -o closed/a.v1.toml": "cannot write `closed/a.v1.toml`: ",
    "bundle sign made --key closed/key": "closed/key: error: the key cannot be read: ",
    "train recipe.toml -o closed/out": "`closed/out` cannot be read: ",
    "train recipe.toml -o closed/out --resume": "`closed/out` cannot be read: ",
    "score closed/out": "no weights file and no model `closed/out`",
    "score made -d closed/data": "closed/data: error: no such file or folder",
}
"""Commands, and what is told where a folder may not be entered."""
EACH = """
import sys
from zoo.cli import run

for command in sys.argv[1:]:
    status = run(command.split())
    print(f"ends with {status}", file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_a_folder_that_may_not_be_entered_is_told(project: Path, store: Store) -> None:
    (project / "spec.toml").write_text(spec())
    assert run(["build", "spec.toml", "-o", "built"]) == 0
    assert run(["bundle", "make", "built", "made", "--license", "MIT"]) == 0
    write_toy(project)
    (project / "closed").mkdir(mode=0)
    done = subprocess.run(
        [sys.executable, "-c", EACH, *CLOSED],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=without_privileges,
        check=False,
    )
    assert "Traceback" not in done.stderr
    found = done.stderr.split("ends with 2\n")
    assert len(found) == len(CLOSED) + 1
    for (command, message), told in zip(CLOSED.items(), found, strict=False):
        assert message in told, command


def test_a_plugin_that_exits_does_not_end_the_process(project: Path) -> None:
    (project / "mine.py").write_text("import sys\nsys.exit(0)\n")
    (project / "registry.toml").write_text('format = 1\n[ffn]\nmine = "mine.py:Mine"\n')
    (project / "spec.toml").write_text(spec('ffn = "mine"', without="d_ff"))
    done = process("build", "spec.toml")
    assert done.returncode == 2
    assert "SystemExit: 0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def built(project: Path) -> dict[str, bytes]:
    """A model on disk, which a failed build must not change."""
    (project / "spec.toml").write_text(spec())
    assert run(["build", "spec.toml", "-o", "out"]) == 0
    return contents(project)


@pytest.mark.parametrize("output", ["spec.toml", "spec.toml/below", "out/model.safetensors/x"])
def test_an_output_folder_that_cannot_be(
    output: str, built: dict[str, bytes], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["build", "spec.toml", "--seed", "1", "-o", output]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert re.match(
        r"error: cannot write `.*`: \w.*\n +.*help: what was there is untouched", told.err
    )
    assert contents(project) == built


@pytest.mark.parametrize(
    "line",
    [
        "build spec.toml -o ''",
        "build ''",
        "validate spec.toml ''",
        "validate spec.toml -d ''",
        "show ''",
        "show spec.toml --svg ''",
        "diff spec.toml ''",
        "diff '' spec.toml",
        "schema -o ''",
        "lock ''",
        "lock spec.toml -o ''",
        "load ''",
        "run '' text",
        "score ''",
        "score out -d ''",
        "train ''",
        "train recipe.toml -o ''",
        "import ''",
        "import out -o ''",
        "export '' --to hf -o there",
        "export out --to hf -o ''",
        "bundle make '' there",
        "bundle make out ''",
        "bundle make out there --card ''",
        "bundle verify ''",
        "bundle verify out --key ''",
        "bundle sign '' --key key.pem",
        "push '' there --license mit",
        "push out there --license mit -o ''",
        "pull ''",
        "verify ''",
        "rm ''",
        "lint bert --config ''",
        "init ''",
        "--registry '' list",
    ],
)
def test_an_empty_name_is_not_the_working_directory(
    line: str, built: dict[str, bytes], refused: Refused
) -> None:
    assert re.search(
        r"Invalid value for .*: the (path|name) is empty\n", refused(*shlex.split(line))
    )


@pytest.mark.parametrize(
    "line",
    [
        "build spec.toml --output=~/out",
        "lock spec.toml --output=~",
        "schema --output='~/schema.json'",
        "show spec.toml --svg='~/a.svg'",
        "import out --output=~/there",
        "push out '~/there' --license mit",
        "init '~/project'",
    ],
)
def test_no_folder_is_called_as_shells_call_the_home_folder(
    line: str, built: dict[str, bytes], project: Path, refused: Refused
) -> None:
    assert f"after `=`, and Python does not either: write `{Path.home()}" in refused(
        *shlex.split(line)
    )
    assert contents(project) == built
    (project / "~").mkdir()  # who has made one means it
    assert run(["build", "spec.toml", "-o", "~/out"]) == 0


def test_python_makes_no_home_folder_of_it_either(project: Path) -> None:
    (project / "spec.toml").write_text(spec())
    with pytest.raises(ZooError, match=re.escape(f"write `{Path.home() / 'out'}`")):
        zoo.save(zoo.build("spec.toml"), "~/out")
    assert not (project / "~").exists()


def test_a_file_in_the_place_of_a_folder(project: Path, refused: Refused) -> None:
    (project / "spec.toml").write_text(spec())
    for output in ("spec.toml", "spec.toml/deeper"):
        told = refused("build", "spec.toml", "-o", output)
        assert f"`{output}/model.safetensors`: a file has the name of `spec.toml`\n" in told


@pytest.mark.parametrize("name", ["x.pt", "x.PTH", "x.bin", "x.ckpt", "x.h5", "x.onnx", "x.gguf"])
@pytest.mark.parametrize("shards", [[], ["--max-shard-bytes", "999"]], ids=["file", "shards"])
def test_a_name_of_another_format(
    name: str, shards: list[str], project: Path, refused: Refused
) -> None:
    """The name would be that of a folder, which no program for that format could read."""
    (project / "spec.toml").write_text(spec())
    told = refused("build", "spec.toml", "-o", f"out/{name}", *shards)
    assert f"`out/{name}` would not be a {Path(name).suffix} file" in told
    file = "" if shards else "`out/x.safetensors`, or "
    assert f"help: write {file}`out/x`, a folder" in told
    model = zoo.build("spec.toml")
    with pytest.raises(WeightsError, match=f"`{name}` would not be a"):
        zoo.save(model, name)
    assert not Path(name).exists()


FOLDERS = {
    "import": ("import", "checkpoint", "-o"),
    "export": ("export", "imported", "--to", "hf", "-o"),
    "bundle": ("bundle", "make", "imported"),
    "train": ("train", "recipe.toml", "-o"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the inputs of each command whose output is a folder."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("sources")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    GPT2LMHeadModel(GPT2Config(vocab_size=19, **sizes)).save_pretrained(folder / "checkpoint")
    assert run(["import", str(folder / "checkpoint"), "-o", str(folder / "imported")]) == 0
    write_toy(folder)
    return folder


@pytest.mark.parametrize("name", ["x.pt", "out/x.bin", "x.safetensors"])
@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_named_as_a_file(
    command: str, name: str, sources: Path, project: Path, refused: Refused
) -> None:
    shutil.copytree(sources, project, dirs_exist_ok=True)
    told = refused(*FOLDERS[command], name)
    suffix = Path(name).suffix
    what = "be a folder: " if suffix == ".safetensors" else f"not be a {suffix} file: "
    assert f"`{name}` would {what}" in told
    assert f"help: write `{Path(name).with_suffix('')}`" in told


def test_an_ending_in_capitals_is_that_of_a_file(project: Path) -> None:
    zoo.save(zoo.build(spec()), "x.SAFETENSORS")
    assert (project / "x.SAFETENSORS").is_file()
    assert zoo.load("x.SAFETENSORS").spec.name == zoo.build(spec()).spec.name


def test_a_folder_in_the_place_of_a_weights_file(project: Path, refused: Refused) -> None:
    """Weights written into it could not be loaded by that name."""
    model = zoo.build(spec())
    zoo.save(model, "saved")
    (project / "x.safetensors").mkdir()
    assert "`x.safetensors` would be a folder" in refused(
        "bundle", "make", "saved", "x.safetensors"
    )
    with pytest.raises(zoo.ZooError, match="Is a directory"):
        zoo.save(model, "x.safetensors")


def test_a_folder_may_be_named_with_a_dot(project: Path) -> None:
    (project / "there.bin").mkdir()
    model = zoo.build(spec())
    for name in ("bert-base.uncased", "qwen2.5", "there.bin"):
        zoo.save(model, name)
        assert (project / name / "model.safetensors").is_file()


@pytest.mark.parametrize("case", ["foreign", "imported", "trained"])
def test_initial_weights_replace_none_but_initial_ones(
    case: str, built: dict[str, bytes], project: Path, refused: Refused
) -> None:
    folder = project / "out"
    model = zoo.load(folder)
    if case == "foreign":
        save_file(model.state_dict(), folder / "model.safetensors")
        what = "a file that holds no weights of the zoo"
    elif case == "imported":
        model.origin = {"family": "toy"}
        zoo.save(model, folder)
        what = "imported weights"
    else:
        zoo.save(model, folder)  # after a loop of one's own
        what = "weights that `zoo build` has not made, and that may be trained"
    before = contents(project)
    assert refused("build", "spec.toml", "-o", "out", "--seed", "1") == (
        f"out/model.safetensors: error: initial weights would take the place of {what}\n"
        "      = help: `-o` names another place; or remove what is there\n"
    )
    assert contents(project) == before


def test_initial_weights_replace_initial_ones(built: dict[str, bytes], project: Path) -> None:
    assert run(["build", "spec.toml", "-o", "out", "--seed", "1"]) == 0
    after = contents(project)
    assert after.keys() == built.keys()
    assert after["out/model.safetensors"] != built["out/model.safetensors"]


def test_a_disk_that_is_full(built: dict[str, bytes], project: Path, command: Command) -> None:
    """The kernel refuses to let a file grow beyond 10 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert len(built["out/model.safetensors"]) > 10_000
    for output in ("out", "new/folder"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            status, _, err = command("build", "spec.toml", "--seed", "1", "-o", output)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert status == 2, err
        assert "error: cannot write " in err
        assert contents(project) == built


def test_a_picture_takes_the_place_of_nothing_else(refused: Refused, project: Path) -> None:
    (project / "spec.toml").write_text(spec())
    for name in ("spec.toml", "picture.png", "picture"):
        assert f"Invalid value for '--svg': {name} does not end with .svg" in refused(
            "show", "spec.toml", "--svg", name
        )
    assert "Invalid value for '--svg': .svg has no name before .svg" in refused(
        "show", "spec.toml", "--svg", ".svg"
    )
