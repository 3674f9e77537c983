"""Prefect: order, fan-out, retries and placement of the stages that DVC describes."""

import os

# Prefect reads it when it is first imported: nothing is sent to its makers from here.
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
