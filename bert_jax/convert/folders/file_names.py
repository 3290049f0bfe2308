"""The files and folders that stand beside a model's weights.

As transformers 2.11, 3.5, 4.0, 4.57 and 5 write them with a model, a tokenizer and a `Trainer`;
sentence-transformers 0.4, 2.2, 3.4 and 6.2; google-research/bert (commit eedf571); bert-jax; and
those that repositories on the Hugging Face hub have besides.
"""

from typing import Final

from bert_jax.data_pipeline.folders.table import Entry, no_effect, read, refused

_TRAINING = "the state of a training run, which is no part of the model"
_RESULTS = "results and records of a training run"
_OTHER_FORMAT = "the same weights for another library"
_NOT_BERT = "of models that read pictures or sound, or write text"

WEIGHTS: Final[tuple[Entry, ...]] = (
    read(
        "model.safetensors model-?????-of-?????.safetensors model.safetensors.index.json",
        "the weights",
    ),
    read(
        "pytorch_model.bin pytorch_model-?????-of-?????.bin pytorch_model.bin.index.json",
        "the weights, where there is no model.safetensors",
    ),
)
FILES: Final[tuple[Entry, ...]] = (
    read("config.json", "the architecture, see its keys"),
    *WEIGHTS,
    read("tokenizer.json", "the tokenizer; the older forms beside it are not read then"),
    read("tokenizer_config.json", "the tokenizer's class and settings, see its keys"),
    read("special_tokens_map.json", "special tokens, where no added_tokens_decoder has them"),
    read("added_tokens.json", "tokens beyond the vocabulary, where no added_tokens_decoder is"),
    read("vocab.txt vocab.json merges.txt bpe.codes sentencepiece.bpe.model", "the vocabulary"),
    read("modules.json", "the parts of a sentence encoder, see its keys"),
    read("[0-9]_*/ [0-9][0-9]_*/", "a part of a sentence encoder that modules.json names"),
    read("sentence_*_config.json", "how a sentence encoder reads text, see its keys"),
    read("config_sentence_transformers.json", "prompts of a sentence encoder, see its keys"),
    read("heads.safetensors optimizer.safetensors SHA256SUMS", "of an export of bert-jax"),
    refused("adapter_config.json adapter_model.* adapters.json", "an adapter changes the weights: "
            "merge it into them (`merge_and_unload` of peft) and save the model again"),
    refused("head_config.json pytorch_model_head.bin", "a head of adapters beside the weights"),
    refused("config_setfit.json model_head.pkl model_head.bin", "a classifier of SetFit on the "
            "vectors, which would be lost; take its encoder alone"),
    refused("quant*_config.json quantization_config.json",
            "quantized weights; save the model without quantization"),
    refused("spiece.model tokenizer.model spm.model", "a vocabulary of SentencePiece that only "
            "its own class reads; save the tokenizer as tokenizer.json", "tokenizer.json"),
    # Of refused files, `unless` names another file that is read instead.
    refused("preprocessor_config.json processor_config.json video_preprocessor_config.json "
            "audio_tokenizer_config.json image_processor_config.json", _NOT_BERT),
    no_effect("generation_config.json", "how text is written, which an encoder does not"),
    no_effect("chat_template.json chat_template.jinja", "how a conversation is written as text"),
    no_effect("modelcard.json model_card.json model_index.json similarity_evaluation_*.json "
              "data_config.json eval_results.json all_results.json train_results.json "
              "test_results.json predict_results.json *_results.json results.json metrics.json "
              "trainer_state.json", _RESULTS),
    no_effect("training_args.json training_config.json train_config.json", _TRAINING),
    no_effect("training_args.bin optimizer.pt optimizer.bin scheduler.pt scheduler.bin scaler.pt "
              "rng_state*.pth global_step*/ checkpoint-*/ checkpoints/", _TRAINING),
    no_effect("runs/ logs/ eval/ wandb/ events.out.*", _RESULTS),
    no_effect("tf_model.h5 flax_model.msgpack rust_model.ot model.onnx *.onnx *.gguf *.ot "
              "pytorch_model.pt openvino_model.* onnx/ openvino/ coreml/ tflite/ model.mlpackage/",
              _OTHER_FORMAT),
    no_effect("onnx_config.json ort_config.json openvino_config.json config.onnx.json",
              _OTHER_FORMAT),
    no_effect("README* LICENSE* NOTICE* *.md *.txt *.png *.jpg *.svg *.csv *.tsv",
              "text for readers"),
    no_effect("*.py", "code, which is never run; a config.json that needs it is refused"),
    no_effect("bert_config.json albert_config.json",
              "the settings for google-research/bert; config.json holds"),
    no_effect(".*", "of Git and of the hub"),
    no_effect(".*/ __pycache__/", "of Git and of the hub"),
)  # fmt: skip

GOOGLE_FILES: Final[tuple[Entry, ...]] = (
    read("bert_config.json albert_config.json", "the architecture, see its keys"),
    read("vocab.txt", "the vocabulary"),
    read("*.model", "ALBERT's vocabulary, of SentencePiece"),
    no_effect("*.vocab", "a list of it for readers"),
    read("*.index *.data-?????-of-?????", "the checkpoint: the weights, and on request the "
         "optimizer's moments and step"),
    no_effect("*.meta graph.pbtxt", "the graph of TensorFlow"),
    no_effect("checkpoint", "the names of the newest checkpoints"),
    no_effect("events.out.* eval/ eval_results.txt eval_* *.tsv predictions.json "
              "nbest_predictions.json null_odds.json *_results.json", _RESULTS),
    no_effect("export/ *.tf_record *.tfrecord", "an input or a product of training"),
    no_effect("config.json pytorch_model.bin model.safetensors tokenizer.json "
              "tokenizer_config.json special_tokens_map.json", "a copy for transformers"),
    no_effect("README* LICENSE* *.md *.txt *.py .*", "text for readers"),
    no_effect(".*/ __pycache__/", "of Git"),
)  # fmt: skip
