"""Hold families against transformers, one line for each model and a table of its differences.

    python tests/families/check.py llama 'gpt2*'     # these models; * stands for anything
    python tests/families/check.py --all             # every model
    python tests/families/check.py --list            # their names

The exit status is 1 if any model fails.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import click

sys.path.insert(0, str(Path(__file__).parents[1]))  # where pytest finds this package, too

from families.cases import Case, all_cases
from zoo.errors import ZooError
from zoo.wording import did_you_mean


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="Check every model.")
@click.option("--list", "listing", is_flag=True, help="List the names and do nothing else.")
@click.option("--trace", is_flag=True, help="Print whole tracebacks.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave the checkpoints, imports and exports in this folder.",
)
def main(
    names: tuple[str, ...], everything: bool, listing: bool, trace: bool, keep: Path | None
) -> None:
    cases = chosen(names or ("*",))
    if listing:
        for case in cases:
            click.echo(f"{case.name:<30} {case.kind:<16} {case.model_class}")
        return
    if not names and not everything:
        raise click.UsageError("state the names of models, or --all, or --list")
    failed = [case.name for case in cases if not check_one(case, trace, keep, table=bool(names))]
    click.echo(f"{len(cases) - len(failed)} of {len(cases)} hold")
    if failed:
        click.echo("failed: " + " ".join(failed))
        sys.exit(1)


def chosen(patterns: Iterable[str]) -> list[Case]:
    """The cases that the patterns name."""
    cases = all_cases()
    found: dict[str, Case] = {}
    for pattern in patterns:
        matches = {n: case for n, case in cases.items() if fnmatchcase(n, pattern)}
        if not matches:
            raise click.UsageError(f"there is no {pattern!r}: {did_you_mean(pattern, cases)}")
        found |= matches
    return list(found.values())


def check_one(case: Case, trace: bool, keep: Path | None, *, table: bool) -> bool:
    """Check a case and print what was found; return whether it holds."""
    import torch

    from families.conformance import check, make_truth

    torch.set_num_threads(1)  # the models are too small for more
    start = time.perf_counter()
    with TemporaryDirectory() as temporary:
        work = Path(temporary) if keep is None else new_folder(keep / case.name)
        try:
            report = check(make_truth(case, work / "original"), work)
        except Exception as error:  # whatever a half-written family makes of it
            click.echo(f"{case.name:<30} ERROR")
            click.echo(indented(traceback.format_exc() if trace else told(error)))
            return False
    state = "FAILS" if report.faults else "ok"
    seconds = time.perf_counter() - start
    click.echo(f"{case.name:<30} {state:<6} {report.largest:8.1e}  {seconds:.1f} s")
    if table:
        for d in report.differences:
            share = f"({d.excess:.2g} of allowed)"
            click.echo(f"  {d.input:<12} {d.output:<8} {d.largest:8.1e}  {share}")
    for fault in report.faults:
        click.echo(indented(fault))
    return not report.faults


def new_folder(path: Path) -> Path:
    """A folder that was not there. Raises click's error if it was."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise click.UsageError(f"{path} is there already") from None
    return path


def told(error: Exception) -> str:
    """What an error says, and where it was raised unless it is one of the zoo's."""
    if isinstance(error, ZooError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}, in {last.name}"
    return f"{type(error).__name__}: {error}\n({where}; --trace shows the whole way)"


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


if __name__ == "__main__":
    main()
