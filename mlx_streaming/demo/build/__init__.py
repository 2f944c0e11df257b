"""The scripts that made the embedded checkpoint: corpus, tokenizer, training, export, evaluation."""
