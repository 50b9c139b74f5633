"""Algorithms as pipelines."""
