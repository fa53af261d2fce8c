"""Sounds: reading files, and how they become the waveforms that a model takes."""
