"""Trajectories and buffers."""
