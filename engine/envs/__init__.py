"""Gymnasium in, batches of transitions out."""
