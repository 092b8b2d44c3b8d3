"""Makes `import torchvision` succeed where this folder is on PYTHONPATH; its modules and attributes are empty classes.

vLLM imports it for Qwen3.5, whose text needs nothing of it. The lock for CPUs leaves it out.
"""

import importlib.machinery
import sys


class Empty(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Empty(spec.name, (), {"__path__": (), "__version__": "0"})

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
