"""Words of a command line that make a tiny run."""

TINY = [
    "--config=tiny",
    "--config.phases[0].steps=4",
    "--config.phases[0].batch_size=8",
    "--config.phases[0].seq_length=32",
    "--config.phases[0].max_predictions=5",
    "--config.model.hidden_size=32",
    "--config.model.intermediate_size=64",
    "--config.model.vocab_size=100",
]
