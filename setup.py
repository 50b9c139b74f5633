"""Package metadata; the tools' settings are in pyproject.toml, the tested versions in constraints.txt."""

import sys
from pathlib import Path

from setuptools import find_packages, setup

RENDER = ["pygame-ce>=2.5"]
BOX2D = ["gymnasium[box2d]>=1.2"]
MUJOCO = ["gymnasium[mujoco]>=1.2"]
# ale-py is GPL-2.0: an extra only, never imported by engine itself.  AtariPreprocessing resizes with OpenCV.
ATARI = ["ale-py>=0.11", "opencv-python-headless>=4.10"]
TEST = ["pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "array-api-strict>=2.3"]

# An editable install is one line with the path of this folder, which type checkers and editors can follow.
# With a folder mapped to another name setuptools would install a finder instead, which they cannot.
PACKAGES, FOLDERS = find_packages(include=["engine", "engine.*"]), {"": "."}
if "editable_wheel" not in sys.argv:
    PACKAGES, FOLDERS = [*PACKAGES, "engine.configs"], {"engine.configs": "configs"}

setup(
    name="engine",
    version="0.1.0",
    description="A training engine for reinforcement learning: pipelines of middleware and a bus of events",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=PACKAGES,
    package_dir=FOLDERS,
    package_data={"engine": ["py.typed"], "engine.configs": ["*.yaml", "*/*.yaml"]},
    install_requires=[
        "torch>=2.6",
        "numpy>=2.0,<3",
        "gymnasium>=1.2,<2",
        "DI-treetensor>=0.5.0",
        "pyzmq>=26",
        "click>=8.1",
        "msgspec>=0.19",
        "PyYAML>=6.0",
        "rich>=13.7",
        "tensorboard>=2.17",
        "matplotlib>=3.9",
        "imageio[ffmpeg]>=2.34",
        "safetensors>=0.4",
        "array-api-compat>=1.9",
    ],
    extras_require={
        "test": [*TEST, *RENDER],
        "dev": [*TEST, *RENDER, *BOX2D, "ruff>=0.9", "mypy>=1.14", "types-PyYAML"],
        "render": RENDER,
        "box2d": BOX2D,
        "mujoco": MUJOCO,
        "atari": ATARI,
        "bench": ["stable-baselines3==2.9.2"],
        "all": [*RENDER, *BOX2D, *MUJOCO],
    },
    entry_points={"console_scripts": ["engine=engine.cli.main:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
