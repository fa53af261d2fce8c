"""Checks of the images and sounds that a model is called with, for the modules of components and
for `zoo.generation`.

images.py, sounds.py   images, and spectrograms of sounds
in_texts.py            their places in texts
"""
