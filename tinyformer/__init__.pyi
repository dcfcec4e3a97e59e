"""The public names of tinyformer, each with its home. Type checkers and editors read this file, and ``__init__.py`` does when a
name is first used."""

__version__: str

from tinyformer.audio.features import (
    MelConfig as MelConfig,
    log_mel as log_mel,
    mel_filters as mel_filters,
    power_spectrum as power_spectrum,
)
from tinyformer.audio.wav import read_wav as read_wav, write_wav as write_wav
from tinyformer.chat.conversation import Chat as Chat, open_chat as open_chat
from tinyformer.chat.template import ChatTemplate as ChatTemplate, find_chat_template as find_chat_template
from tinyformer.commands.command_line import (
    Commands as Commands,
    Parser as Parser,
    add_model_flag as add_model_flag,
    add_pair_flags as add_pair_flags,
    add_run_flags as add_run_flags,
    add_run_settings as add_run_settings,
    add_settings as add_settings,
    add_text_flag as add_text_flag,
    as_flags as as_flags,
    first_choice as first_choice,
    next_command as next_command,
    run_command as run_command,
    some_path as some_path,
)
from tinyformer.commands.inputs import piped_lines as piped_lines, typed_lines as typed_lines
from tinyformer.commands.setup import (
    RunSetup as RunSetup,
    draw_losses as draw_losses,
    tell_next as tell_next,
    train_to_end as train_to_end,
)
from tinyformer.common.errors import (
    SettingError as SettingError,
    UserError as UserError,
    escaped as escaped,
    plain_errors as plain_errors,
    print_line as print_line,
    stop_script as stop_script,
)
from tinyformer.common.makers import Maker as Maker
from tinyformer.common.settings import (
    at_least as at_least,
    check_effects as check_effects,
    check_fields as check_fields,
    one_of as one_of,
    setting as setting,
    settings_from as settings_from,
)
from tinyformer.common.vectors import Vectors as Vectors, padded_vectors as padded_vectors
from tinyformer.data.batches import Batch as Batch, Batches as Batches, LabelledBatches as LabelledBatches, padded as padded
from tinyformer.data.masking import MaskedBatches as MaskedBatches, Masking as Masking
from tinyformer.data.pair_files import PairFiles as PairFiles, one_line as one_line, read_tsv as read_tsv
from tinyformer.data.pairs import (
    PairBatch as PairBatch,
    PairBatches as PairBatches,
    Specials as Specials,
    VectorPairBatch as VectorPairBatch,
    encode_pairs as encode_pairs,
    read_two_files as read_two_files,
    split_pairs as split_pairs,
    vector_pair_batch as vector_pair_batch,
)
from tinyformer.data.reading import default_text as default_text, open_text as open_text, read_text as read_text
from tinyformer.data.sentences import (
    check_marks as check_marks,
    labelled_sentences as labelled_sentences,
    likely_marks as likely_marks,
    sentence_parts as sentence_parts,
    sentences_before as sentences_before,
)
from tinyformer.data.synthetic import dates as dates
from tinyformer.data.text import TextBatches as TextBatches
from tinyformer.decoding.beam_search import (
    BeamCandidate as BeamCandidate,
    BeamStep as BeamStep,
    HuggingFaceRule as HuggingFaceRule,
    Hypothesis as Hypothesis,
    WuRule as WuRule,
    beam_search as beam_search,
    log_softmax as log_softmax,
)
from tinyformer.decoding.filling import fill_masks as fill_masks, hide_words as hide_words, with_wordpieces as with_wordpieces
from tinyformer.decoding.generation import (
    Decoder as Decoder,
    GPTDecoder as GPTDecoder,
    RecurrentDecoder as RecurrentDecoder,
    TransformerDecoder as TransformerDecoder,
    generate as generate,
    language_decoder as language_decoder,
    sample as sample,
    translation_decoder as translation_decoder,
)
from tinyformer.decoding.sampling import Sampling as Sampling
from tinyformer.decoding.streaming import stream_text as stream_text
from tinyformer.decoding.token_losses import token_losses as token_losses, token_losses_in_parts as token_losses_in_parts
from tinyformer.export import export_onnx as export_onnx, export_page as export_page
from tinyformer.markov import KneserNey as KneserNey, SkipVotes as SkipVotes, TransitionTable as TransitionTable
from tinyformer.models.attention import MultiHeadAttention as MultiHeadAttention, recording_attention as recording_attention
from tinyformer.models.bert import (
    Bert as Bert,
    BertConfig as BertConfig,
    BertForClassification as BertForClassification,
    BertForMaskedLM as BertForMaskedLM,
    BertForNextSentence as BertForNextSentence,
    BertForQuestionAnswering as BertForQuestionAnswering,
    BertForTokenClassification as BertForTokenClassification,
    BertHead as BertHead,
)
from tinyformer.models.blocks import Block as Block, BlockConfig as BlockConfig
from tinyformer.models.evaluating import evaluating as evaluating
from tinyformer.models.gpt import GPT as GPT, GPTConfig as GPTConfig, GPTVectors as GPTVectors
from tinyformer.models.intervening import (
    AttentionRow as AttentionRow,
    BlockOff as BlockOff,
    BlockOutput as BlockOutput,
    HeadOff as HeadOff,
    Intervention as Intervention,
    MeanAttention as MeanAttention,
    NetworkOff as NetworkOff,
    NeuronOff as NeuronOff,
    intervening as intervening,
    mean_attention as mean_attention,
    recording_means as recording_means,
)
from tinyformer.models.quantizing import quantize as quantize
from tinyformer.models.recording import (
    attention_rollout as attention_rollout,
    recording_outputs as recording_outputs,
    residual_streams as residual_streams,
)
from tinyformer.models.recurrent import RecurrentConfig as RecurrentConfig, RecurrentLM as RecurrentLM
from tinyformer.models.sentences import SentenceModel as SentenceModel
from tinyformer.models.seq2seq import (
    AdditiveAttentionModel as AdditiveAttentionModel,
    ContextVectorModel as ContextVectorModel,
    Seq2SeqConfig as Seq2SeqConfig,
)
from tinyformer.models.transformer import Transformer as Transformer, TransformerConfig as TransformerConfig
from tinyformer.pretrained.adapters import load_adapter as load_adapter, save_adapter as save_adapter
from tinyformer.pretrained.folders import find_folder as find_folder
from tinyformer.pretrained.loading import from_pretrained as from_pretrained, save_pretrained as save_pretrained
from tinyformer.pretrained.sentences import SentenceEncoder as SentenceEncoder, sentence_encoder as sentence_encoder
from tinyformer.pretrained.tokenizers import (
    pretrained_tokenizer as pretrained_tokenizer,
    save_pretrained_tokenizer as save_pretrained_tokenizer,
)
from tinyformer.pretrained.writing import Writing as Writing, read_writing as read_writing
from tinyformer.tokenizers import (
    BPETokenizer as BPETokenizer,
    CharTokenizer as CharTokenizer,
    MarianTokenizer as MarianTokenizer,
    PipelineTokenizer as PipelineTokenizer,
    Tokenizer as Tokenizer,
    WordPieceTokenizer as WordPieceTokenizer,
    WordTokenizer as WordTokenizer,
    load_tokenizer as load_tokenizer,
)
from tinyformer.tokenizers.texts import token_texts as token_texts
from tinyformer.training.config import TrainingConfig as TrainingConfig
from tinyformer.training.evaluation import accuracy as accuracy, evaluate as evaluate, perplexity as perplexity
from tinyformer.training.logging import Logger as Logger
from tinyformer.training.losses import (
    class_loss as class_loss,
    masked_token_loss as masked_token_loss,
    next_token_loss as next_token_loss,
    translation_loss as translation_loss,
)
from tinyformer.training.optimizing import muon_for as muon_for
from tinyformer.training.run_folder import RunFolder as RunFolder, load_weights as load_weights
from tinyformer.training.snapshots import Snapshots as Snapshots, save_run as save_run
from tinyformer.training.tensorboard import TensorBoardLogger as TensorBoardLogger
from tinyformer.training.trainer import Trainer as Trainer
from tinyformer.training.transcription import Transcriber as Transcriber
from tinyformer.training.translation import (
    TranslationConfig as TranslationConfig,
    Translator as Translator,
    specials_of as specials_of,
)
from tinyformer.word_vectors import (
    Corpus as Corpus,
    TfIdf as TfIdf,
    Word2Vec as Word2Vec,
    Word2VecConfig as Word2VecConfig,
    WordVectors as WordVectors,
    count_vectors as count_vectors,
    load_vectors as load_vectors,
    passages as passages,
    save_vectors as save_vectors,
)
from tinyformer.word_vectors.components import principal_components as principal_components
