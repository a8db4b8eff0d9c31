"""The version of this package, whether it is installed or only on the path. pyproject.toml says it, too."""

VERSION = "0.2.0"
