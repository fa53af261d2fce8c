"""How long `zoo list`, `show` and `validate` take, against importing the libraries of the field.

`import pydantic` imports what a name of it needs when that is first asked for. So the same is told
against an import that defines one model, with one field.
"""

from __future__ import annotations

from benchmarks.measure import Ratio, in_turn, process, python, zoo_command

TARGET = 1.5
IMPORTS = "import pydantic, typer, rich"
WITH_MODEL = f'{IMPORTS}; pydantic.create_model("One", x=(int, 0))'


def measure(rounds: int = 15) -> list[Ratio]:
    """Return a ratio for each command and library."""
    zoo = zoo_command()
    commands = {
        "zoo list": [zoo, "list"],
        "zoo show vaswani-base": [zoo, "show", "vaswani-base"],
        "zoo validate vaswani-base": [zoo, "validate", "vaswani-base"],
    }
    cases = {name: process(command) for name, command in commands.items()}
    imports = {code: process(python(code)) for code in (IMPORTS, WITH_MODEL)}
    times = in_turn({**imports, **cases}, rounds)
    return [
        Ratio(name, f"python -c '{code}'", times[name], times[code], target)
        for code, target in ((IMPORTS, TARGET), (WITH_MODEL, None))
        for name in commands
    ]
