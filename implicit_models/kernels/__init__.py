"""Tensors in, tensors out: the operations of the backbones, without parameters."""
