"""How long `zoo list`, `show` and `validate` take, against importing the libraries of the field."""

from __future__ import annotations

from benchmarks.measure import Ratio, in_turn, process, python, zoo_command

BAR = 1.5
IMPORTS = "import pydantic, typer, rich"


def measure(rounds: int = 15) -> list[Ratio]:
    """One ratio for each command."""
    zoo = zoo_command()
    commands = {
        "zoo list": [zoo, "list"],
        "zoo show vaswani-base": [zoo, "show", "vaswani-base"],
        "zoo validate vaswani-base": [zoo, "validate", "vaswani-base"],
    }
    cases = {name: process(command) for name, command in commands.items()}
    times = in_turn({"imports": process(python(IMPORTS)), **cases}, rounds)
    return [
        Ratio(name, f"python -c '{IMPORTS}'", times[name], times["imports"], BAR)
        for name in commands
    ]
