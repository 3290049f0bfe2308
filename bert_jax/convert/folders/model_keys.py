"""The keys of config.json, and of bert_config.json and albert_config.json."""

from typing import Final

from bert_jax.data_pipeline.folders.table import READ, Entry, no_effect, read, refused

_WRITES = "how text is written, which an encoder does not"
_OUTPUTS = "what a call in PyTorch returns"
_ARCHITECTURE = "the architecture"

_EXPERIMENTS: Final = (
    no_effect("net_structure_type gap_size down_scale_factor num_memory_blocks layers_to_keep",
              "of experiments with ALBERT, which neither its program nor transformers reads"),
    refused("ln_type", "LayerNorm in other places", "postln"),
)  # fmt: skip
CONFIG_KEYS: Final[tuple[Entry, ...]] = (
    read("model_type architectures", "the family, and the class with its heads"),
    read("vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size "
         "max_position_embeddings type_vocab_size", _ARCHITECTURE),
    read("dim n_layers n_heads hidden_dim activation dropout attention_dropout",
         "DistilBERT's names of the same"),
    read("hidden_activation norm_eps", "ModernBERT's names of hidden_act and layer_norm_eps"),
    read("norm_bias attention_bias mlp_bias classifier_bias decoder_bias classifier_activation",
         "ModernBERT's; dense layers have biases in all of these places or in none, the word "
         "scores have one, and heads have the activation of the layers"),
    read("local_attention global_attn_every_n_layers global_rope_theta local_rope_theta rope_theta",
         "ModernBERT's windows and rotary angles, as transformers 4 writes them"),
    read("layer_types rope_parameters sliding_window",
         "the same as transformers 5 writes them; layers 0, n, 2n, … must be the global ones"),
    read("embedding_dropout mlp_dropout", "ModernBERT's, which must be 0"),
    read("hidden_act", "GELU with erf (gelu, gelu_python) or with tanh (gelu_new, gelu_fast, "
         "gelu_accurate, gelu_python_tanh, gelu_pytorch_tanh)"),
    read("layer_norm_eps hidden_dropout_prob attention_probs_dropout_prob initializer_range",
         _ARCHITECTURE),
    read("pad_token_id", "the padding id, after which RoBERTa's positions start; there, a text "
         "with it is refused, since transformers does not count it"),
    read("position_embedding_type rotary_value", "only learned positions, or RoFormer's"),
    read("embedding_size", "ALBERT's and ELECTRA's; RoFormer's tables have the hidden size"),
    read("num_hidden_groups", "ALBERT's"),
    read("inner_group_num", "ALBERT's, which must be 1"),
    read("id2label label2id num_labels _num_labels problem_type classifier_dropout "
         "classifier_dropout_prob seq_classif_dropout qa_dropout summary_last_dropout "
         "finetuning_task",
         "the head of a task; it stays as it is"),
    read("summary_type summary_use_proj summary_activation", "ELECTRA's, of multiple choice, which "
         "must be first, true and gelu; no class of the others reads them"),
    no_effect("generator_size", "how wide the generator of an ELECTRA was"),
    read("classifier_pooling", "what ModernBERT's classifier of texts reads"),
    read("tokenizer_class", "the class of the tokenizer, if tokenizer_config.json names none"),
    read("bos_token_id eos_token_id cls_token_id sep_token_id imported_from trained_length",
         "kept as it is"),
    read("trained_form", "how the run made and masked its examples, by which "
         "`bert-jax evaluate --model` measures; kept as it is"),
    refused("is_decoder add_cross_attention is_encoder_decoder tie_encoder_decoder",
            "a decoder; give an encoder", False, None),
    refused("cross_attention_hidden_size", "a decoder; give an encoder", None),
    read("num_key_value_heads", "must be num_attention_heads: no heads share keys and values"),
    refused("pruned_heads", "heads of some layers are cut out", None, {}),
    refused("quantization_config compression_config",
            "quantized weights; save the model without quantization", None, {}),
    refused("auto_map", "needs code of its own (auto_map), which bert-jax never runs", None, {}),
    refused("adapters adapter_fusion", "adapters change what a layer computes", None, {}),
    refused("per_layer_config", "layers differ from one another", None, {}),
    refused("rope_scaling", "rotary angles that are scaled", None),
    refused("partial_rotary_factor", "rotary positions of a part of each head", None, 1.0),
    read("tie_word_embeddings tie_weights_", "an output matrix that is not that of the embeddings "
         "is refused by its tensor, whatever this says"),
    no_effect("sinusoidal_pos_embds", "how positions were initialized; the weights have them"),
    no_effect("_name_or_path name_or_path _commit_hash transformers_version "
              "transformers.js_config model_name language summary __version__",
              "where the model comes from"),
    no_effect("initializer_cutoff_factor", "how weights were initialized; they are there"),
    no_effect("sparse_prediction sparse_pred_ignore_index", _OUTPUTS),
    no_effect("torch_dtype dtype use_bfloat16 fp16 bf16", "the weights have their type"),
    no_effect("_attn_implementation _attn_implementation_autoset _attn_implementation_internal "
              "attn_implementation _experts_implementation use_memory_efficient_attention "
              "chunk_size_feed_forward gradient_checkpointing use_cache xla_device torchscript "
              "deterministic_flash_attn reference_compile repad_logits_with_grad",
              "how PyTorch computes the same"),
    no_effect("output_attentions _output_attentions output_hidden_states output_past return_dict "
              "use_return_dict tf_legacy_loss", _OUTPUTS),
    no_effect("max_length min_length do_sample early_stopping num_beams num_beam_groups "
              "diversity_penalty temperature top_k top_p typical_p repetition_penalty "
              "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
              "num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
              "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty "
              "suppress_tokens begin_suppress_tokens decoder_start_token_id prefix "
              "task_specific_params eos_token_ids", _WRITES),
    no_effect("unk_token_id mask_token_id",
              "ids that the tokenizer has"),
    no_effect("directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
              "pooler_size_per_head pooler_type", "of a pooler that no class of transformers has"),
    *_EXPERIMENTS,
    no_effect("summary_proj_to_labels", "of classes of other families"),
    refused("summary_first_dropout", "dropout before the dense layer of multiple choice", None, 0,
            0.0),
)  # fmt: skip

GOOGLE_KEYS: Final[tuple[Entry, ...]] = (
    read("attention_probs_dropout_prob hidden_act hidden_dropout_prob hidden_size "
         "initializer_range intermediate_size max_position_embeddings num_attention_heads "
         "num_hidden_layers type_vocab_size vocab_size", _ARCHITECTURE),
    refused("model_type", "another architecture", "bert"),
    no_effect("directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
              "pooler_size_per_head pooler_type", "of a pooler that modeling.py does not have"),
    refused("embedding_size num_hidden_groups inner_group_num net_structure_type gap_size "
            "down_scale_factor", "ALBERT's architecture"),
)  # fmt: skip

ALBERT_KEYS: Final[tuple[Entry, ...]] = (
    *(entry for entry in GOOGLE_KEYS if entry.use == READ),
    read("embedding_size num_hidden_groups", _ARCHITECTURE),
    refused("inner_group_num", "several layers in a group", 1),
    refused("model_type", "another architecture", "albert"),
    *_EXPERIMENTS,
)
