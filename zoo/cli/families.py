"""Commands for published checkpoints: `zoo import`, `zoo export`, `zoo families`, `zoo lint`."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoo.cli.options import (
    AddressType,
    NameType,
    Registries,
    folder_option,
    json_option,
    max_shard_bytes_option,
    model_type,
    path_type,
)
from zoo.cli.output import print_report
from zoo.cli.progress import count_bar
from zoo.errors import Problem, SpecError, noted
from zoo.files.of_model import CONFIG, SETTINGS
from zoo.wording import counted

if TYPE_CHECKING:
    from zoo.registry import Registry


@click.command("import")
@click.argument("source", type=AddressType(), metavar="SRC")
@folder_option("-o", "--output", help="The new folder.  [default: the model's name]")
@click.option(
    "--part",
    metavar="NAME",
    help="The part to import of a checkpoint of several models: `text`, its language model alone.",
)
@click.option(
    "--adapter",
    metavar="DIR",
    type=AddressType(),
    help="The folder or address of a LoRA adapter, as PEFT writes it, to merge into the weights.",
)
@click.option("--name", help="The model's name.  [default: that of the folder SRC, or --adapter]")
@json_option
@click.pass_obj
def import_(
    registries: Registries,
    source: Path | str,
    output: Path | None,
    part: str | None,
    adapter: Path | str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Turn a published checkpoint into a model of the zoo.

    SRC is a Hugging Face folder with a config.json and safetensors, or its address: one of the hub,
    `hf://owner/name`, of which the latest commit is read, or `hf://owner/name@REVISION`; or of a
    folder elsewhere, such as `s3://bucket/folder`. `zoo families` lists the types of models that
    can be imported.
    """
    registry = registries()
    from zoo.cli.making import import_and_save

    gc.enable()
    report = import_and_save(
        source, output, part=part, adapter=adapter, name=name, registry=registry
    )
    print_report(as_json, report, _import_text)


def _import_text(report: Mapping[str, Any]) -> str:
    usual, made = report["dtype"], report["made"]
    lines = [
        f"{report['name']}: {report['parameters']:,} parameters, by the family {report['family']}"
    ]
    lines += [
        f"{one['repo']} at the commit {one['revision']}"
        for one in report["sources"]
        if "repo" in one
    ]
    lines += [
        f"left out: {counted(one['n_tensors'], 'tensor')} of `{one['prefix']}`, "
        f"{one['n_bytes']:,} bytes"
        for one in report["left_out"]
    ]
    if (how := report["quantization"]) is not None:
        lines.append(f"quantized weights ({how}) as the floats that they stand for, in {usual}")
    if (adapter := report["adapter"]) is not None:
        lines.append(f"with the adapter {adapter} in its weights")
    lines += [
        f"{usual}, but {counted(len(names), 'tensor')} in {other}: `{names[0]}`"
        f"{', ...' if len(names) > 1 else ''}; they stay so unless "
        "`zoo.load(..., dtype=...)` casts all to one"
        for other, names in report["other_dtypes"].items()
    ]
    if tokenizers := [name for name in made if name != SETTINGS]:
        lines.append(f"{', '.join(tokenizers)}: made of source.spm, target.spm and vocab.json")
    if SETTINGS in made:
        lines.append(f"{SETTINGS}: made of {CONFIG}, since the checkpoint has none")
    return "\n".join([*lines, report["path"], report["content_digest"]])


_MADE_ELSEWHERE: Mapping[str, str] = {
    "onnx": "ONNX is made in Python, by `torch.onnx.export` of what `zoo.load` returns",
    "gguf": "`convert_hf_to_gguf.py` makes GGUF of what `--to hf` writes",
}
"""What to do for forms that `zoo export` does not write."""


class _Form(click.Choice[str]):
    """The form of an export, with help for those that other programs make."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if (help := _MADE_ELSEWHERE.get(str(value).lower())) is not None:
            self.fail(f"{value!r} is not 'hf'; {help}", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("model", type=model_type)
@click.option(
    "--to",
    type=_Form(["hf"]),
    required=True,
    help="The form of the checkpoint: a Hugging Face folder.",
)
@folder_option("-o", "--output", required=True, help="The new folder.")
@click.option(
    "--config",
    metavar="FILE",
    type=path_type,
    help="A config.json that describes the model. One that was imported needs none.",
)
@click.option(
    "--as",
    "architecture",
    metavar="CLASS",
    help="The class of `transformers` that the model becomes, for a config.json that is found.",
)
@max_shard_bytes_option
@json_option
@click.pass_obj
def export(
    registries: Registries,
    model: str,
    to: str,
    output: Path,
    config: Path | None,
    architecture: str | None,
    max_shard_bytes: int | None,
    as_json: bool,
) -> None:
    """Turn a model into a published checkpoint.

    MODEL is its folder, or its name.
    """
    registry = registries()
    from zoo.exporting.export import export_folder

    gc.enable()
    with count_bar("exporting") as bar:
        tried = count(1)
        export_folder(
            model,
            output,
            config=config,
            architecture=architecture,
            max_shard_bytes=max_shard_bytes,
            on_trial=lambda: bar.describe(f"looking for a configuration, {next(tried)} tried"),
            registry=registry,
        )
    print_report(as_json, {"path": str(output)}, lambda r: r["path"])


def _families(registry: Registry) -> Iterable[str]:
    from zoo.families.registered import Families

    return Families(registry).paths


@click.command()
@click.argument("pattern", required=False, type=NameType(_families))
@json_option
@click.pass_obj
def families(registries: Registries, pattern: str | None, as_json: bool) -> None:
    """List the families of published checkpoints.

    With a PATTERN (`qwen*`), those whose name or model type matches it.
    """
    from zoo.families.table import families_data, families_text

    print_report(as_json, families_data(registries(), pattern), families_text)


@click.command()
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="FAMILY...",
    type=NameType(_families, files=True),
)
@click.option(
    "--config",
    type=path_type,
    help="A config.json to check with, instead of the defaults of the family's model types.",
)
@json_option
@click.pass_obj
def lint(
    registries: Registries, names: tuple[str, ...], config: Path | None, as_json: bool
) -> None:
    """Check the rules of families.

    FAMILY is a name or a family file. Exactly one rule must make each tensor of its models, and
    each rule must work in both directions.
    """
    registry = registries()
    from dataclasses import asdict

    from zoo.families.family import read_family
    from zoo.families.lint import lint as check
    from zoo.families.registered import Families

    gc.enable()
    families = Families(registry)
    report: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for name in names:
        with noted(problems):
            is_file = name.endswith(".toml")
            family = read_family(Path(name), families.paths) if is_file else families.family(name)
            report.append(asdict(check(family, registry, config)))
    lines = [
        f"{one['family']}: {one['rules']} rules hold for "
        f"{counted(one['forms'], 'form')} of checkpoints"
        for one in report
    ]
    if as_json or lines:
        print_report(as_json, report, lambda _: "\n".join(lines))
    if problems:
        raise SpecError(problems)
