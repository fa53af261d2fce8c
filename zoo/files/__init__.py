"""The files of models, and what a user names as a file.

of_model.py, of_training.py   the names of the files that belong to a model, or to a training
hints.py                      help for a path that leads to no file
formats.py                    formats of weights that are not read, and what to do instead
endless.py                    refuses what could be read without end
pointer.py                    refuses what only says where its bytes are
media.py                      opens files of images and sounds
atomic.py                     writes files and folders: each is complete, or does not exist
"""
