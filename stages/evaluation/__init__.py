"""Stages that test trained models."""
