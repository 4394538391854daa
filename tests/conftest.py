"""The tests run in as many processes as there are cores; torch then needs no threads of its own."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
