"""What pyproject.toml cannot say: the version, which is the source's, and the wheel's tag.

The wheel holds programs and libraries for one processor and from one version of the C library on,
and no extension module: any Python will do. `make wheel` names both (scripts/wheel).
"""

import os

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel


class Native(Distribution):
    """Files of a platform, though there is nothing to compile."""

    def has_ext_modules(self):
        return True


class NativeWheel(bdist_wheel):
    """A wheel for one platform and every Python 3."""

    def get_tag(self):
        return "py3", "none", os.environ["CAUSEWAY_WHEEL_PLATFORM"]


setup(version=os.environ["CAUSEWAY_WHEEL_VERSION"], distclass=Native,
      cmdclass={"bdist_wheel": NativeWheel})
