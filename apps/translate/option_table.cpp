#include "option_table.h"

#include <array>

namespace translate {
namespace {

using O = Options;
using program_options::OptionSpec;
constexpr auto kTrain = static_cast<unsigned>(Command::train);
constexpr auto kInfer = static_cast<unsigned>(Command::infer);

// clang-format off
const auto kOptions = std::to_array<OptionSpec>({
    {.name = "experiment-name", .letter = 'e', .field = &O::experiment_name, .value = "NAME",
     .help = "the run directory is SAVE_DIR/NAME", .heading = "What is learned, from what"},
    {.name = "data", .letter = 'd', .field = &O::data, .value = "PATH",
     .help = "sentence pairs: a table with tabs, JSON, Parquet, Arrow, a folder of Hugging Face's datasets; with "
             "--target-data a text with a sentence a line", .shown_default = "the made-up pairs inside the program"},
    {.name = "target-data", .field = &O::target_data, .value = "PATH",
     .help = "the translations of --data, a sentence a line"},
    {.name = "lang-src", .field = &O::lang_src, .value = "NAME",
     .help = "the source's language: its column, or its key under \"translation\""},
    {.name = "lang-tgt", .field = &O::lang_tgt, .value = "NAME", .help = "the target's language, likewise"},
    {.name = "pairs", .field = &O::pairs, .value = "N", .help = "take only the first so many", .lowest = 0,
     .highest = 1e12, .shown_default = "all"},
    {.name = "validation-fraction", .field = &O::validation_fraction, .value = "F",
     .help = "the part of the pairs that is kept for validation", .lowest = 0, .highest = 0.9},
    {.name = "seq-len", .letter = 's', .field = &O::seq_len, .value = "N",
     .help = "tokens that a sentence may have, marks of start and end included", .lowest = 3, .highest = 1e6},
    {.name = "long-pairs", .field = &O::long_pairs, .value = "HOW",
     .help = "what becomes of pairs that are longer: refuse (to start), or skip them and say how many",
     .choices = "refuse|skip"},
    {.name = "tokenizer", .field = &O::tokenizer, .value = "KIND",
     .help = "made from the data: word (the tutorial's), or bpe (byte-level: no word is unknown)", .choices = "word|bpe"},
    {.name = "vocab-size", .field = &O::vocab_size, .value = "N", .help = "entries of a tokenizer at most",
     .lowest = 5, .highest = 1'000'000},
    {.name = "min-frequency", .field = &O::min_frequency, .value = "N",
     .help = "words that occur less often are unknown (bpe: pairs that are not merged)", .lowest = 1, .highest = 1e9},
    {.name = "num-workers", .field = &O::num_workers, .value = "N",
     .help = "threads that load batches ahead", .lowest = 0, .highest = 256},

    {.name = "d-model", .field = &O::d_model, .value = "N", .help = "width", .heading = "The model",
     .lowest = 1, .highest = 1e6},
    {.name = "layers", .field = &O::layers, .value = "N", .help = "of the encoder, and as many of the decoder",
     .lowest = 1, .highest = 1000},
    {.name = "heads", .field = &O::heads, .value = "N", .help = "of attention; they share the width",
     .lowest = 1, .highest = 1e5},
    {.name = "d-ff", .field = &O::d_ff, .value = "N", .help = "width of the feed-forward parts", .lowest = 1, .highest = 1e7},
    {.name = "dropout", .field = &O::dropout, .value = "P", .help = "in training", .lowest = 0, .highest = 0.99},

    {.name = "epochs", .field = &O::epochs, .value = "N", .help = "passes over the data",
     .heading = "How long, how fast", .lowest = 1, .highest = 1e9},
    {.name = "max-steps", .field = &O::max_steps, .value = "N", .help = "stop after this step",
     .lowest = 0, .highest = 1e15, .shown_default = "no limit"},
    {.name = "time-limit", .field = &O::time_limit, .value = "SECONDS",
     .help = "save and stop after this time; started again, the run goes on", .lowest = 0, .highest = 1e9,
     .shown_default = "no limit"},
    {.name = "batch-size", .letter = 'b', .field = &O::batch_size, .value = "N",
     .help = "pairs per rank and micro-batch", .lowest = 1, .highest = 1e6},
    {.name = "grad-accum", .field = &O::grad_accum, .value = "N", .help = "micro-batches per step",
     .lowest = 1, .highest = 1e6},
    {.name = "grad-clip", .field = &O::grad_clip, .value = "NORM",
     .help = "clip the gradients to this norm; 0: do not", .lowest = 0, .highest = 1e9},
    {.name = "lr", .field = &O::lr, .value = "RATE", .help = "learning rate of Adam", .lowest = 0, .highest = 1e6,
     .shown_default = "1e-4; with --schedule noam 1, which it multiplies"},
    {.name = "schedule", .field = &O::schedule, .value = "NAME",
     .help = "of the learning rate: constant (the tutorial's), noam (the paper's), or cosine over the whole run",
     .choices = "constant|noam|cosine"},
    {.name = "warmup", .field = &O::warmup, .value = "N", .help = "steps in which the learning rate grows from 0",
     .lowest = -1, .highest = 1e15, .shown_default = "4000 with noam, else 0"},
    {.name = "beta2", .field = &O::beta2, .value = "F", .help = "of Adam", .lowest = 0, .highest = 0.999999},
    {.name = "epsilon", .field = &O::epsilon, .value = "F", .help = "of Adam", .lowest = 0, .highest = 1},
    {.name = "label-smoothing", .field = &O::label_smoothing, .value = "F",
     .help = "the part of a label that is spread over all words", .lowest = 0, .highest = 0.99},
    {.name = "dtype", .field = &O::dtype, .value = "TYPE",
     .help = "fp32, or bf16-autocast: float32 weights, products in bfloat16", .choices = "fp32|bf16-autocast"},
    {.name = "seed", .field = &O::seed, .value = "N", .help = "of weights, split, order of the data and dropout",
     .lowest = 0, .highest = 9e15},

    {.name = "ranks", .field = &O::ranks, .value = "N",
     .help = "processes to start; under a launcher they are there already, and it is left out",
     .heading = "Where it runs", .lowest = 1, .highest = 4096},
    {.name = "slots", .field = &O::slots, .value = "N",
     .help = "logical ranks: what the data is dealt to and gradients are added over",
     .lowest = 0, .highest = 1e6, .shown_default = "as many as ranks at the first start"},
    {.name = "device", .field = &O::device, .value = "DEVICE", .help = "cpu, cuda or cuda:N",
     .shown_default = "a GPU per rank where there are any; infer: cpu", .commands = kTrain | kInfer},
    {.name = "backend", .field = &O::backend, .value = "NAME", .help = "auto, gloo, shm, hybrid, mpi or nccl",
     .shown_default = "LOCKSTEP_BACKEND, or nccl on a GPU, auto on the CPU"},

    {.name = "eval-freq", .field = &O::eval_freq, .value = "N",
     .help = "steps from one validation to the next; 0: one at the end of each epoch",
     .heading = "How it is tried out", .lowest = 0, .highest = 1e15},
    {.name = "beam", .field = &O::beam, .value = "N", .help = "sentences that a search follows side by side; 1: greedy",
     .lowest = 1, .highest = 1000, .commands = kTrain | kInfer},
    {.name = "length-penalty", .field = &O::length_penalty, .value = "F",
     .help = "how much a search with a beam favours long sentences", .lowest = -10, .highest = 10,
     .commands = kTrain | kInfer},
    {.name = "examples", .field = &O::examples, .value = "N",
     .help = "pairs that are shown after each validation, with what the model makes of them", .lowest = 0, .highest = 1000},

    {.name = "save-dir", .field = &O::save_dir, .value = "DIR", .help = "where run directories are",
     .heading = "What it leaves behind"},
    {.name = "preload", .field = &O::preload, .value = "WHAT",
     .help = "what it goes on from: latest (what the run directory has, or nothing), the number of an epoch's file, or "
             "none (refuses to start in a directory that has a run)"},
    {.name = "ckpt-freq", .field = &O::ckpt_freq, .value = "N", .help = "steps from one snapshot to the next, beside those "
     "of each epoch; 0: only these", .lowest = 0, .highest = 1e15},
    {.name = "keep-last", .field = &O::keep_last, .value = "N", .help = "snapshots that stay; 0: all",
     .lowest = 0, .highest = 1e6},
    {.name = "log-freq", .field = &O::log_freq, .value = "N", .help = "steps from one report to the next",
     .lowest = 1, .highest = 1e15},
    {.name = "track", .field = &O::track, .value = "LIST",
     .help = "how reports are kept, separated by commas: jsonl (always), tensorboard, wandb (on the disk, for wandb sync)"},
    {.name = "wandb-run-id", .field = &O::wandb_run_id, .value = "ID", .help = "of the run of W&B; it is kept in each epoch's file",
     .shown_default = "that of the run that goes on, or its name"},
    {.name = "no-progress", .field = &O::no_progress, .help = "no bar and no progress lines"},

    {.name = "run", .letter = 'r', .field = &O::run, .value = "DIR", .help = "the directory of a run",
     .heading = "What translates", .commands = kInfer},
    {.name = "weights", .letter = 'w', .field = &O::weights, .value = "WHICH",
     .help = "latest, or the number of an epoch's file", .commands = kInfer},
});
// clang-format on

}  // namespace

std::span<const program_options::OptionSpec> all_options() {
  return kOptions;
}

}  // namespace translate
