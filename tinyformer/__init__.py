"""tinyformer: Transformers on tinytensor.

- ``models``: the networks, and the parts that they are built from.
- ``tokenizers``: from text to ids and back.
- ``data``: from files to batches.
- ``audio``: from WAV files to vectors.
- ``training``: the loop, losses, evaluation, and the folder of a run with its checkpoints.
- ``decoding``: from logits to text.
- ``word_vectors``: words as vectors, by counting and by word2vec.
- ``markov``: what comes next, by counting.
- ``pretrained``: models in Hugging Face's layout, in and out.
- Beside these packages: scripts and their command lines, translation, transcription, settings, errors, files, pictures,
  progress, memory.

``from tinyformer import GPT`` works for every name below, and loads only the files that the name needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; a test holds it equal to the table below
    from tinyformer.audio.features import MelConfig, log_mel, mel_filters, power_spectrum
    from tinyformer.audio.wav import read_wav, write_wav
    from tinyformer.command_line import (
        Commands,
        Parser,
        add_model_flag,
        add_pair_flags,
        add_run_flags,
        add_run_settings,
        add_settings,
        add_text_flag,
        as_flags,
        first_choice,
        next_command,
        piped_lines,
        run_command,
        some_path,
        typed_lines,
    )
    from tinyformer.data.batches import Batch, Batches, padded
    from tinyformer.data.dates import dates
    from tinyformer.data.labelled import LabelledBatches
    from tinyformer.data.masking import MaskedBatches, Masking
    from tinyformer.data.pair_files import PairFiles, one_line
    from tinyformer.data.pairs import PairBatch, PairBatches, Specials, encode_pairs, read_tsv, read_two_files, split_pairs
    from tinyformer.data.reading import default_text, open_text, read_text
    from tinyformer.data.sentences import check_marks, labelled_sentences, likely_marks, sentence_parts, sentences_before
    from tinyformer.data.text import TextBatches
    from tinyformer.data.vector_pairs import VectorPairBatch, vector_pair_batch
    from tinyformer.decoding.beam_rules import HuggingFaceRule, WuRule
    from tinyformer.decoding.beam_search import BeamCandidate, BeamStep, Hypothesis, beam_search, log_softmax
    from tinyformer.decoding.decoders import (
        Decoder,
        GPTDecoder,
        RecurrentDecoder,
        TransformerDecoder,
        language_decoder,
        translation_decoder,
    )
    from tinyformer.decoding.filling import fill_masks, hide_words, with_wordpieces
    from tinyformer.decoding.sampling import Sampling, generate, sample
    from tinyformer.decoding.streaming import stream_text
    from tinyformer.decoding.token_losses import token_losses, token_losses_in_parts
    from tinyformer.errors import SettingError, UserError, plain_errors
    from tinyformer.export import export_onnx
    from tinyformer.markov import KneserNey, SkipVotes, TransitionTable
    from tinyformer.models.attention import MultiHeadAttention, recording_attention
    from tinyformer.models.bert import Bert, BertConfig, BertForClassification, BertForMaskedLM
    from tinyformer.models.blocks import Block, BlockConfig
    from tinyformer.models.evaluating import evaluating
    from tinyformer.models.gpt import GPT, GPTConfig
    from tinyformer.models.recording import recording_outputs, residual_streams
    from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM
    from tinyformer.models.rollout import attention_rollout
    from tinyformer.models.seq2seq import AdditiveAttentionModel, ContextVectorModel, Seq2SeqConfig
    from tinyformer.models.transformer import Transformer, TransformerConfig
    from tinyformer.pretrained.folders import find_folder
    from tinyformer.pretrained.loading import from_pretrained
    from tinyformer.pretrained.saving import save_pretrained
    from tinyformer.pretrained.tokenizers import pretrained_tokenizer, save_pretrained_tokenizer
    from tinyformer.pretrained.writing import Writing, read_writing
    from tinyformer.schema import check_fields
    from tinyformer.scripts import RunSetup, draw_losses, train_to_end
    from tinyformer.settings import at_least, one_of, setting, settings_from
    from tinyformer.tokenizers import (
        BPETokenizer,
        CharTokenizer,
        MarianTokenizer,
        Tokenizer,
        WordPieceTokenizer,
        WordTokenizer,
        load_tokenizer,
    )
    from tinyformer.tokenizers.added import AddedToken
    from tinyformer.tokenizers.cutting import CuttingRules
    from tinyformer.tokenizers.texts import token_texts
    from tinyformer.training.config import TrainingConfig
    from tinyformer.training.evaluation import accuracy, evaluate, perplexity
    from tinyformer.training.logging import Logger
    from tinyformer.training.losses import class_loss, masked_token_loss, next_token_loss, translation_loss
    from tinyformer.training.runs import RunFolder, load_weights
    from tinyformer.training.tensorboard import TensorBoardLogger
    from tinyformer.training.trainer import Trainer
    from tinyformer.transcription import Transcriber
    from tinyformer.translation import TranslationConfig, Translator, specials_of
    from tinyformer.vectors import Vectors, padded_vectors
    from tinyformer.word_vectors import (
        Corpus,
        TfIdf,
        Word2Vec,
        Word2VecConfig,
        WordVectors,
        count_vectors,
        load_vectors,
        passages,
        save_vectors,
    )
    from tinyformer.word_vectors.components import principal_components

_NAMES = {
    "audio.features": "MelConfig log_mel mel_filters power_spectrum",
    "audio.wav": "read_wav write_wav",
    "command_line": "Commands Parser add_model_flag add_pair_flags add_run_flags add_run_settings add_settings add_text_flag "
    "as_flags first_choice next_command piped_lines run_command some_path typed_lines",
    "data.batches": "Batch Batches padded",
    "data.dates": "dates",
    "data.labelled": "LabelledBatches",
    "data.masking": "MaskedBatches Masking",
    "data.pair_files": "PairFiles one_line",
    "data.pairs": "PairBatch PairBatches Specials encode_pairs read_tsv read_two_files split_pairs",
    "data.reading": "default_text open_text read_text",
    "data.sentences": "check_marks labelled_sentences likely_marks sentence_parts sentences_before",
    "data.text": "TextBatches",
    "data.vector_pairs": "VectorPairBatch vector_pair_batch",
    "decoding.beam_rules": "HuggingFaceRule WuRule",
    "decoding.beam_search": "BeamCandidate BeamStep Hypothesis beam_search log_softmax",
    "decoding.decoders": "Decoder GPTDecoder RecurrentDecoder TransformerDecoder language_decoder translation_decoder",
    "decoding.filling": "fill_masks hide_words with_wordpieces",
    "decoding.sampling": "Sampling generate sample",
    "decoding.streaming": "stream_text",
    "decoding.token_losses": "token_losses token_losses_in_parts",
    "errors": "SettingError UserError plain_errors",
    "export": "export_onnx",
    "markov": "KneserNey SkipVotes TransitionTable",
    "models.attention": "MultiHeadAttention recording_attention",
    "models.bert": "Bert BertConfig BertForClassification BertForMaskedLM",
    "models.blocks": "Block BlockConfig",
    "models.evaluating": "evaluating",
    "models.gpt": "GPT GPTConfig",
    "models.recording": "recording_outputs residual_streams",
    "models.recurrent": "RecurrentConfig RecurrentLM",
    "models.rollout": "attention_rollout",
    "models.seq2seq": "AdditiveAttentionModel ContextVectorModel Seq2SeqConfig",
    "models.transformer": "Transformer TransformerConfig",
    "pretrained.folders": "find_folder",
    "pretrained.loading": "from_pretrained",
    "pretrained.saving": "save_pretrained",
    "pretrained.tokenizers": "pretrained_tokenizer save_pretrained_tokenizer",
    "pretrained.writing": "Writing read_writing",
    "schema": "check_fields",
    "scripts": "RunSetup draw_losses train_to_end",
    "settings": "at_least one_of setting settings_from",
    "tokenizers": "BPETokenizer CharTokenizer MarianTokenizer Tokenizer WordPieceTokenizer WordTokenizer load_tokenizer",
    "tokenizers.added": "AddedToken",
    "tokenizers.cutting": "CuttingRules",
    "tokenizers.texts": "token_texts",
    "training.config": "TrainingConfig",
    "training.evaluation": "accuracy evaluate perplexity",
    "training.logging": "Logger",
    "training.losses": "class_loss masked_token_loss next_token_loss translation_loss",
    "training.runs": "RunFolder load_weights",
    "training.tensorboard": "TensorBoardLogger",
    "training.trainer": "Trainer",
    "transcription": "Transcriber",
    "translation": "TranslationConfig Translator specials_of",
    "vectors": "Vectors padded_vectors",
    "word_vectors": "Corpus TfIdf Word2Vec Word2VecConfig WordVectors count_vectors load_vectors passages save_vectors",
    "word_vectors.components": "principal_components",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'tinyformer' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"tinyformer.{_HOMES[name]}"), name)
        globals()[name] = value  # so that the next use finds it without this function
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})

    __all__ = sorted(_HOMES)
