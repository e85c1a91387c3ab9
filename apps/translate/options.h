#pragma once

#include <cstdint>
#include <string>

namespace translate {

/// What the program is told, by its command line and its configuration file. The table in
/// option_table.cpp gives each field its name, its help and its limits.
struct Options {
  // What is learned, from what.
  std::string experiment_name = "translate";
  std::string data = {};  // empty: the pairs inside the program
  std::string target_data = {};
  std::string lang_src = "en";
  std::string lang_tgt = "it";
  std::int64_t pairs = 0;  // 0: all; of the pairs inside the program so many
  double validation_fraction = 0.1;
  std::int64_t seq_len = 350;
  std::string long_pairs = "refuse";
  std::string tokenizer = "word";
  std::int64_t vocab_size = 30000;
  std::int64_t min_frequency = 2;
  std::int64_t num_workers = 1;

  // The model.
  std::int64_t d_model = 512;
  std::int64_t layers = 6;
  std::int64_t heads = 8;
  std::int64_t d_ff = 2048;
  double dropout = 0.1;

  // How long, how fast.
  std::int64_t epochs = 20;
  std::int64_t max_steps = 0;  // 0: no limit
  double time_limit = 0;       // seconds; 0: no limit
  std::int64_t batch_size = 8;
  std::int64_t grad_accum = 1;
  double grad_clip = 0;
  double lr = 0;  // 0: 1e-4, or 1 for --schedule noam
  std::string schedule = "constant";
  std::int64_t warmup = -1;  // below 0: 4000 for noam, else 0
  double beta2 = 0.999;
  double epsilon = 1e-9;
  double label_smoothing = 0.1;
  std::string dtype = "fp32";
  std::int64_t seed = 0;

  // Where it runs.
  std::int64_t ranks = 1;
  std::int64_t slots = 0;
  std::string device = {};
  std::string backend = {};

  // How it is tried out.
  std::int64_t eval_freq = 0;  // 0: at the end of each epoch
  std::int64_t beam = 1;
  double length_penalty = 0.6;
  std::int64_t examples = 2;

  // What it leaves behind.
  std::string save_dir = "outputs";
  std::string preload = "latest";
  std::int64_t ckpt_freq = 0;
  std::int64_t keep_last = 3;
  std::int64_t log_freq = 50;
  std::string track = "jsonl";
  std::string wandb_run_id = {};
  bool no_progress = false;

  // infer.
  std::string run = "outputs/translate";
  std::string weights = "latest";
};

}  // namespace translate
