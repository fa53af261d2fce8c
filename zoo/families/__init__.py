"""Published checkpoints as models of the zoo, and back: a TOML file for each family."""

from zoo.families.exporting import export_folder
from zoo.families.importing import import_folder

__all__ = ["export_folder", "import_folder"]
