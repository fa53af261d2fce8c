"""`zoo run`: running a model on its task, with the files of its folder: from texts, by its
tokenizer, or from images, by its settings of them."""
