"""`zoo run`: running a model on its task, with the files of its folder: from texts, by its
tokenizer, or from images or sounds, by its settings of them.

runner.py               loads a model, with what its inputs need
text_model.py           a model of texts; image_model.py, of images; sound_model.py, of sounds;
                        folder_model.py, their loading
asked.py                what is asked of it
image_reader.py         images, as the model takes them
images_in_text.py       images that stand in a text; sounds_in_text.py, sounds that do;
                        media_in_text.py, what both have in common
tasks.py                from its output to the result; entities.py, labels.py, of classes
batches.py, media.py    several inputs

Texts:
text.py                 from text to ids and back; tokenized.py, by the tokenizers of a folder
tokenizer_file.py       reads these; tokenizer_config.py, what is stated beside them;
                        added_tokens.py, the tokens that are
text_inputs.py          what a model reads: the ids of a text, a pair or a chat that fit it
chat.py, languages.py   the prompts of chats and of translators
sentence_texts.py       texts of which vectors are made; compared_texts.py, that are compared with
                        images
letters.py              the text of a sound by letters; sentencepiece.py, by its pieces
transcribing.py         the text of a sound that is generated; speech.py, how it begins

Generating:
generating.py           what models of texts, of images and of sounds have in common
settings.py             how the publisher has set it up; settings_file.py, the file
stops.py                texts at which it ends

perplexity.py says how well a model predicts a text, for `zoo score`.
"""
