#include "option_table.h"

#include <array>

namespace train_llm {
namespace {

using O = Options;
constexpr unsigned kTrain = static_cast<unsigned>(Command::train);
constexpr unsigned kGenerate = static_cast<unsigned>(Command::generate);
constexpr unsigned kExport = static_cast<unsigned>(Command::export_model);

// clang-format off
const auto kOptions = std::to_array<OptionSpec>({
    {.name = "experiment-name", .letter = 'e', .field = &O::experiment_name, .value = "NAME",
     .help = "the run directory is SAVE_DIR/NAME", .heading = "What is trained, on what"},
    {.name = "dataset-name", .letter = 'd', .field = &O::dataset_name, .value = "PATH",
     .help = "a file or folder of records: JSON, JSONL, text, Parquet, Arrow, a folder of Hugging Face's "
             "datasets; or a name such as tatsu-lab/alpaca that is in the hub's cache",
     .shown_default = "the instructions inside the program"},
    {.name = "dataset-split", .field = &O::dataset_split, .value = "NAME",
     .help = "which split of a folder that has several"},
    {.name = "model-name", .letter = 'm', .field = &O::model_name, .value = "DIR",
     .help = "a GPT-2 directory of Hugging Face's transformers (config.json, weights, tokenizer); or a name "
             "such as openai-community/gpt2 that is in the hub's cache", .shown_default = "none: --model"},
    {.name = "model", .field = &O::model, .value = "NAME",
     .help = "train from scratch: gpt2, gpt2-medium, gpt2-large, gpt2-xl, tiny, or the path of a config.json",
     .shown_default = "tiny, where there is no --model-name"},
    {.name = "from-scratch", .field = &O::from_scratch,
     .help = "with --model-name: its configuration and tokenizer, but new weights"},
    {.name = "n-layer", .field = &O::n_layer, .value = "N", .help = "blocks, in place of what --model has",
     .lowest = 0, .highest = 10000, .shown_default = "as configured"},
    {.name = "n-embd", .field = &O::n_embd, .value = "N", .help = "width, in place of what --model has",
     .lowest = 0, .highest = 1e6, .shown_default = "as configured"},
    {.name = "n-head", .field = &O::n_head, .value = "N", .help = "heads, in place of what --model has",
     .lowest = 0, .highest = 1e5, .shown_default = "as configured"},
    {.name = "tokenizer", .field = &O::tokenizer, .value = "DIR",
     .help = "the tokenizer (tokenizer.json, or vocab.json and merges.txt)",
     .shown_default = "that of --model-name; without one, a new one is made from the data"},
    {.name = "vocab-size", .field = &O::vocab_size, .value = "N",
     .help = "entries of a tokenizer that is made from the data", .lowest = 257, .highest = 1'000'000},
    {.name = "seq-length", .letter = 's', .field = &O::seq_length, .value = "N",
     .help = "tokens in a block; never more than the model has positions", .lowest = 2, .highest = 1e7},
    {.name = "loss-on-answers", .field = &O::loss_on_answers,
     .help = "train on the answers of instructions only"},
    {.name = "packing", .field = &O::packing, .value = "HOW",
     .help = "of documents into blocks: cut (one after the other, as the tutorial does), whole (none is cut where a block "
             "ends), single (a block for each)", .choices = "cut|whole|single"},
    {.name = "template", .field = &O::prompt_template, .value = "NAME",
     .help = "how instructions are put: alpaca, or brief (the instruction, the input, a new line)", .choices = "alpaca|brief"},
    {.name = "dropout", .field = &O::dropout, .value = "P", .help = "in place of the configuration's three",
     .highest = 0.99, .shown_default = "as configured"},
    {.name = "eval-fraction", .field = &O::eval_fraction, .value = "F",
     .help = "the part of the records that is kept for validation", .lowest = 0, .highest = 0.9},
    {.name = "num-workers", .field = &O::num_workers, .value = "N",
     .help = "threads that load batches ahead", .lowest = 0, .highest = 256},
    {.name = "cache-dir", .field = &O::cache_dir, .value = "DIR", .help = "where tokenised data is kept",
     .shown_default = "$XDG_CACHE_HOME/lockstep or ~/.cache/lockstep"},
    {.name = "cache-limit", .field = &O::cache_limit, .value = "BYTES",
     .help = "when new tokenised data is kept and all of it takes more than this, what was not used for longest is removed, but nothing "
             "that a run uses; 0: keep all"},

    {.name = "num-epochs", .field = &O::num_epochs, .value = "N", .help = "passes over the data",
     .heading = "How long, how fast", .lowest = 1, .highest = 1e9},
    {.name = "max-steps", .field = &O::max_steps, .value = "N", .help = "stop after this step",
     .lowest = 0, .highest = 1e15, .shown_default = "no limit"},
    {.name = "time-limit", .field = &O::time_limit, .value = "SECONDS",
     .help = "save and stop after this time; started again, the run goes on", .lowest = 0, .highest = 1e9,
     .shown_default = "no limit"},
    {.name = "lr", .field = &O::lr, .value = "RATE", .help = "learning rate of AdamW", .lowest = 0, .highest = 1e6},
    {.name = "schedule", .field = &O::schedule, .value = "NAME",
     .help = "of the learning rate: cosine, linear, constant or inverse-sqrt",
     .choices = "cosine|linear|constant|inverse-sqrt"},
    {.name = "warmup", .field = &O::warmup, .value = "N", .help = "steps in which the learning rate grows from 0",
     .lowest = 0, .highest = 1e15},
    {.name = "schedule-steps", .field = &O::schedule_steps, .value = "N",
     .help = "steps from the top of a cosine or linear schedule to its bottom, warm-up included; a cosine goes up again "
             "afterwards, as the tutorial's; 0: the length of the run", .lowest = 0, .highest = 1e15},
    {.name = "min-lr-factor", .field = &O::min_lr_factor, .value = "F",
     .help = "the bottom of the cosine, as a part of --lr", .lowest = 0, .highest = 1},
    {.name = "batch-size", .letter = 'b', .field = &O::batch_size, .value = "N",
     .help = "blocks per rank and micro-batch", .lowest = 1, .highest = 1e6},
    {.name = "grad-accum", .field = &O::grad_accum, .value = "N", .help = "micro-batches per step",
     .lowest = 1, .highest = 1e6},
    {.name = "grad-clip", .field = &O::grad_clip, .value = "NORM",
     .help = "clip the gradients to this norm; 0: do not", .lowest = 0, .highest = 1e9},
    {.name = "weight-decay", .field = &O::weight_decay, .value = "F", .help = "of AdamW", .lowest = 0, .highest = 10},
    {.name = "decay-matrices-only", .field = &O::decay_matrices_only,
     .help = "no weight decay for biases and norms"},
    {.name = "beta1", .field = &O::beta1, .value = "F", .help = "of AdamW", .lowest = 0, .highest = 0.999999},
    {.name = "beta2", .field = &O::beta2, .value = "F", .help = "of AdamW", .lowest = 0, .highest = 0.999999},
    {.name = "epsilon", .field = &O::epsilon, .value = "F", .help = "of AdamW", .lowest = 0, .highest = 1},
    {.name = "dtype", .field = &O::dtype, .value = "TYPE",
     .help = "auto: bf16 on a GPU, fp32 on the CPU, where 16 bits are several times slower; a run that goes on keeps what it has; "
             "bf16: weights and all (the tutorial's way); bf16-autocast: float32 weights, products in bfloat16; "
             "bf16-mixed: with --shard, parts in float32, computed with and sent in bfloat16, gradients added in float32; "
             "fp16: as bf16-autocast in float16 with a gradient scaler; fp32", .choices = "auto|bf16|bf16-autocast|bf16-mixed|fp16|fp32"},
    {.name = "cuda-graph", .field = &O::cuda_graph,
     .help = "record the step and replay it, for short steps on a GPU; with --dtype bf16-autocast and --dropout 0"},
    {.name = "activation-checkpointing", .field = &O::activation_checkpointing,
     .help = "compute activations a second time in backward: less memory, a third more time"},
    {.name = "seed", .field = &O::seed, .value = "N", .help = "of weights, order of the data and dropout; sampling",
     .lowest = 0, .highest = 9e15, .commands = kTrain | kGenerate},

    {.name = "ranks", .field = &O::ranks, .value = "N",
     .help = "processes to start; under a launcher they are there already, and it is left out",
     .heading = "Where it runs", .lowest = 1, .highest = 4096},
    {.name = "plan", .field = &O::plan,
     .help = "say how much memory each of --ranks would take, by kind and stage of sharding, and end; nothing is loaded or trained"},
    {.name = "memory", .field = &O::memory, .value = "BYTES",
     .help = "with --plan: choose the stage and the largest --batch-size for so much memory a rank, as in 24GiB",
     .shown_default = "show all stages"},
    {.name = "slots", .field = &O::slots, .value = "N",
     .help = "logical ranks: what the data is dealt to and gradients are added over",
     .lowest = 0, .highest = 1e6, .shown_default = "as many as ranks at the first start"},
    {.name = "device", .field = &O::device, .value = "DEVICE", .help = "cpu, cuda or cuda:N",
     .shown_default = "a GPU per rank where there are any", .commands = kTrain | kGenerate},
    {.name = "backend", .field = &O::backend, .value = "NAME", .help = "auto, gloo, shm, hybrid, mpi, nccl or cpu:gloo,cuda:nccl",
     .shown_default = "LOCKSTEP_BACKEND, or nccl on a GPU, auto on the CPU"},
    {.name = "reduction", .field = &O::reduction, .value = "ORDER",
     .help = "in which order gradients are added: ordered (by slot, the same bits for any number of ranks), native "
             "(the backend's), or automatic (ordered on the CPU)", .choices = "automatic|ordered|native"},
    {.name = "bucket-cap-mb", .field = &O::bucket_cap_mb, .value = "MIB",
     .help = "gradients that are reduced together", .lowest = 0, .highest = 1e6, .above_lowest = true},
    {.name = "compress", .field = &O::compress, .value = "HOW",
     .help = "gradients before they travel, for slow links: none, bf16, fp16, int8, powersgd[:RANK[:START]] (from step START "
             "on, by default 1000)"},
    {.name = "shard", .field = &O::shard, .value = "STAGE",
     .help = "each rank keeps a part only, of the optimizer's state (1), and of gradients (2), and of parameters (3); "
             "0: everything everywhere", .lowest = 0, .highest = 3},
    {.name = "shard-replicas", .field = &O::shard_replicas, .value = "N",
     .help = "with --shard: how many ranks hold each part; it divides the number of ranks. From 2 on a rank that dies is "
             "replaced in place", .lowest = 1, .highest = 1e6},
    {.name = "shard-copies", .field = &O::shard_copies,
     .help = "with --shard: each rank keeps a copy of the part of another one, on another machine where there are several of "
             "the same size, so that a rank that dies is replaced in place"},
    {.name = "defer-init", .field = &O::defer_init,
     .help = "with --shard 3: weights are made or read one after the other and cut at once, for models that no rank can hold; "
             "without validation and questions, which want the whole model"},

    {.name = "save-dir", .field = &O::save_dir, .value = "DIR", .help = "where run directories are",
     .heading = "What it leaves behind"},
    {.name = "log-freq", .field = &O::log_freq, .value = "N", .help = "steps from one report to the next",
     .lowest = 1, .highest = 1e15},
    {.name = "track", .field = &O::track, .value = "LIST",
     .help = "how reports are kept, separated by commas: jsonl (always), tensorboard, wandb (on the disk, for wandb sync)"},
    {.name = "wandb-runs", .field = &O::wandb_runs, .value = "WHOSE",
     .help = "who writes a run of W&B: rank-0, each node, or each rank", .choices = "rank-0|node|rank"},
    {.name = "ckpt-freq", .field = &O::ckpt_freq, .value = "N", .help = "steps from one snapshot to the next; "
     "there is always one at the end; 0: only that", .lowest = 0, .highest = 1e15},
    {.name = "keep-last", .field = &O::keep_last, .value = "N", .help = "snapshots that stay; 0: all",
     .lowest = 0, .highest = 1e6},
    {.name = "eval-freq", .field = &O::eval_freq, .value = "N",
     .help = "steps from one validation to the next; 0: one at the end of each epoch",
     .lowest = 0, .highest = 1e15},
    {.name = "resume", .field = &O::resume, .value = "HOW",
     .help = "auto: go on where the run directory stands; never: refuse to start in one that has a run; "
             "must: refuse to start anew", .choices = "auto|never|must"},
    {.name = "flat-checkpoint", .field = &O::flat_checkpoint,
     .help = "beside each snapshot write the tutorial's files: model.pt, optimizer.pt, lr_scheduler.pt, state.json"},
    {.name = "flat-prefix", .field = &O::flat_prefix, .value = "TEXT",
     .help = "of the names in model.pt; empty for a model outside DistributedDataParallel"},
    {.name = "samples", .field = &O::samples, .value = "N",
     .help = "held-out instructions whose answers are shown, where the data has any", .lowest = 0, .highest = 1000},
    {.name = "no-progress", .field = &O::no_progress, .help = "no bar and no progress lines"},

    {.name = "snapshot", .field = &O::snapshot, .value = "DIR",
     .help = "a run directory, one of its snapshots, or a directory of Hugging Face's transformers",
     .heading = "What speaks", .shown_default = "outputs/train_llm", .commands = kGenerate | kExport},
    {.name = "prompt", .field = &O::prompt, .value = "TEXT", .help = "the text to go on from",
     .commands = kGenerate},
    {.name = "instruction", .field = &O::instruction, .value = "TEXT",
     .help = "an instruction in the form that the model was trained on, in place of --prompt",
     .commands = kGenerate},
    {.name = "input", .field = &O::input, .value = "TEXT", .help = "what the instruction is applied to",
     .commands = kGenerate},
    {.name = "max-new-tokens", .field = &O::max_new_tokens, .value = "N", .help = "where to stop at the latest",
     .lowest = 1, .highest = 1e6, .commands = kGenerate},
    {.name = "temperature", .field = &O::temperature, .value = "T",
     .help = "below 1 likely tokens become likelier; 0 always takes the likeliest",
     .lowest = 0, .highest = 1000, .commands = kGenerate},
    {.name = "top-k", .field = &O::top_k, .value = "K", .help = "only the K likeliest tokens; 0: all",
     .lowest = 0, .highest = 1e9, .commands = kGenerate},
    {.name = "top-p", .field = &O::top_p, .value = "P",
     .help = "only the likeliest tokens that together have this probability",
     .lowest = 0, .highest = 1, .above_lowest = true, .commands = kGenerate},
    {.name = "num-samples", .field = &O::num_samples, .value = "N", .help = "texts to generate",
     .lowest = 1, .highest = 10000, .commands = kGenerate},
});
// clang-format on

}  // namespace

std::span<const OptionSpec> all_options() {
  return kOptions;
}

}  // namespace train_llm
