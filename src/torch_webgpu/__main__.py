"""``python -m torch_webgpu``: the ``torch-webgpu`` command."""

import sys

from torch_webgpu_autoload import command

if __name__ == "__main__":
    sys.exit(command())
