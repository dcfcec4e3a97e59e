"""All tests run in full precision, as their tolerances ask for; those of TF32 switch it on where they need it."""

import os

os.environ.setdefault("TINYTENSOR_TF32", "0")
