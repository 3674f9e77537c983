"""Triton's interpreter without half of its work, of which nothing comes.

Triton 3.7 makes its language anew for each call of a function of a kernel, and a table of numpy's
types for each operation; it computes sums and products of integers a second time to see whether
they overflow, and then looks only when debugging.
"""

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any


@functools.cache
def do_no_more_than_is_needed() -> None:
    """Make it quicker for all kernels that this process still runs; numbers remain the same."""
    if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    types, make_type = {}, interpreter._get_np_dtype
    prepare = interpreter._patch_lang

    def numpy_type(dtype: Any) -> Any:
        if dtype.name not in types:
            types[dtype.name] = make_type(dtype)
        return types[dtype.name]

    @functools.cache
    def prepared(function: Callable[..., Any]) -> Any:
        prepare(function)
        return interpreter._LangPatchScope()  # of no changes: they stay for the next call

    options = interpreter.interpreter_builder.options
    assert not options.debug
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
    interpreter._get_np_dtype = numpy_type
    interpreter._patch_lang = prepared
