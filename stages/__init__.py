"""The stages of dvc.yaml, one thin file each: read parameters, call the library, write outputs."""

from implicit_models.threads import wait_briefly

wait_briefly()
