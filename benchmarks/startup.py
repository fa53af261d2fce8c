"""How long `zoo list`, `show` and `validate` take, against importing the libraries of the field.

`import pydantic` imports what a name of it needs when that is first asked for. A spec needs its
`BaseModel`, so the same is told against an import that has it.
"""

from __future__ import annotations

from benchmarks.measure import Ratio, in_turn, process, python, zoo_command

BAR = 1.5
IMPORTS = "import pydantic, typer, rich"
WITH_MODELS = "import pydantic, typer, rich; pydantic.BaseModel"


def measure(rounds: int = 15) -> list[Ratio]:
    """Return a ratio for each command and library."""
    zoo = zoo_command()
    commands = {
        "zoo list": [zoo, "list"],
        "zoo show vaswani-base": [zoo, "show", "vaswani-base"],
        "zoo validate vaswani-base": [zoo, "validate", "vaswani-base"],
    }
    cases = {name: process(command) for name, command in commands.items()}
    imports = {code: process(python(code)) for code in (IMPORTS, WITH_MODELS)}
    times = in_turn({**imports, **cases}, rounds)
    return [
        Ratio(name, f"python -c '{code}'", times[name], times[code], bar)
        for code, bar in ((IMPORTS, BAR), (WITH_MODELS, None))
        for name in commands
    ]
