#pragma once

#include <cstdint>
#include <string>

namespace train_llm {

/// What the program is told, by its command line and its configuration file. The table in
/// option_table.cpp gives each field its name, its help and its limits.
struct Options {
  // What is trained, on what.
  std::string experiment_name = "train_llm";
  std::string dataset_name = {};
  std::string dataset_split = "train";
  std::string model_name = {};
  std::string model = {};
  std::string tokenizer = {};
  std::int64_t vocab_size = 512;
  bool from_scratch = false;
  std::int64_t n_layer = 0;  // 0: what the model's configuration says; so below
  std::int64_t n_embd = 0;
  std::int64_t n_head = 0;
  double dropout = -1;  // below 0: what the model's configuration says
  std::int64_t seq_length = 1024;
  bool loss_on_answers = false;
  std::string packing = "cut";
  std::string prompt_template = "alpaca";
  double eval_fraction = 0;
  std::int64_t num_workers = 1;
  std::string cache_dir = {};
  std::string cache_limit = "20GiB";

  // How long, how fast.
  std::int64_t num_epochs = 100;
  std::int64_t max_steps = 0;  // 0: no limit
  double time_limit = 0;       // seconds; 0: no limit
  double lr = 3e-5;
  std::string schedule = "cosine";
  std::int64_t warmup = 0;
  std::int64_t schedule_steps = 1000;  // 0: as many as the run has
  double min_lr_factor = 0.01;
  std::int64_t batch_size = 1;
  std::int64_t grad_accum = 1;
  double grad_clip = 0;
  double weight_decay = 0.01;
  bool decay_matrices_only = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::string dtype = "auto";
  bool cuda_graph = false;
  bool activation_checkpointing = false;
  std::int64_t seed = 0;

  // Where it runs.
  bool plan = false;
  std::string memory = {};
  std::int64_t ranks = 1;
  std::int64_t slots = 0;
  std::string device = {};
  std::string backend = {};
  std::string reduction = "automatic";
  double bucket_cap_mb = 25;
  std::string compress = "none";
  std::int64_t shard = 0;  // the stage; 0: DistributedDataParallel
  std::int64_t shard_replicas = 1;
  bool shard_copies = false;
  bool defer_init = false;

  // What it leaves behind.
  std::string save_dir = "outputs";
  std::int64_t log_freq = 100;
  std::string track = "jsonl";
  std::string wandb_runs = "rank-0";
  std::int64_t ckpt_freq = 500;
  std::int64_t eval_freq = 0;  // 0: at the end of each epoch
  std::int64_t keep_last = 3;
  std::string resume = "auto";
  bool flat_checkpoint = false;
  std::string flat_prefix = "module.";
  std::int64_t samples = 8;
  bool no_progress = false;

  // generate and export.
  std::string snapshot = {};
  std::string prompt = {};
  std::string instruction = {};
  std::string input = {};
  double temperature = 0.8;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::int64_t max_new_tokens = 64;
  std::int64_t num_samples = 1;
};

}  // namespace train_llm
