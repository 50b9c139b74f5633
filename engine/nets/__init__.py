"""Torch modules."""
