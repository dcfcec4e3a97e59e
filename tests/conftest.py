"""All tests run in full precision, as their tolerances ask for; those of TF32 switch it on where they need it."""

import os

os.environ.setdefault("TINYTENSOR_TF32", "0")


def pytest_addoption(parser):
    parser.addoption("--programs", type=int, default=600, help="how many random programs test_programs.py runs")
    parser.addoption("--seed", type=int, default=0, help="the number of the first random program")
    parser.addoption("--mutations", type=int, default=60, help="how often test_mutated_files.py damages each file")
