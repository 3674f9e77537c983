"""The stages of dvc.yaml, one thin file each: read parameters, call the library, write outputs."""
