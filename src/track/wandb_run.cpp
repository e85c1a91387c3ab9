#include "track/wandb_run.h"

#include <unistd.h>
#include <filesystem>
#include <sstream>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

std::string variable(const Variables& all, const std::string& name) {
  const auto found = all.find(name);
  return found == all.end() ? "" : found->second;
}

void fill(std::string& value, const std::string& otherwise) {
  if (value.empty()) value = otherwise;
}

std::vector<std::string> split_tags(const std::string& text) {
  std::vector<std::string> tags;
  std::istringstream list(text);
  for (std::string tag; std::getline(list, tag, ',');) {
    if (!tag.empty()) tags.push_back(tag);
  }
  return tags;
}

WandbOptions::Resume resume_by(const std::string& text) {
  if (text.empty() || text == "allow" || text == "auto") return WandbOptions::Resume::allow;
  if (text == "must") return WandbOptions::Resume::must;
  if (text == "never") return WandbOptions::Resume::never;
  throw InvalidArgument(
      concat("WANDB_RESUME is '", text, "'; it must be allow, must, never or auto"));
}

// W&B's own rule for ids; they are also names of folders here.
std::string as_wandb_id(std::string text) {
  for (char& c : text) {
    if (std::string_view("/\\#?%:").find(c) != std::string_view::npos) c = '-';
    if (static_cast<unsigned char>(c) < ' ') c = '-';
  }
  return text;
}

// "out/run_3" and "out/run_3/" are called run_3.
std::string folder_name(const std::string& directory) {
  std::error_code ignored;
  auto path = std::filesystem::absolute(directory, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.has_filename() ? path.filename().string() : "run";
}

}  // namespace

std::map<std::string, std::string> wandb_environment() {
  Variables all;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (text.starts_with("WANDB_") && equals != std::string::npos) {
      all[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return all;
}

std::optional<WandbRun> wandb_run(const TrackerOptions& options, const Variables& environment) {
  const auto of = [&](const char* name) { return variable(environment, name); };
  const std::string mode = of("WANDB_MODE");
  if (!options.tracking.wandb || mode == "disabled" || of("WANDB_DISABLED") == "true") {
    return std::nullopt;
  }
  WandbRun run{.options = options.tracking.wandb_options};
  WandbOptions& wandb = run.options;
  fill(wandb.project, of("WANDB_PROJECT"));
  fill(wandb.project, "lockstep");
  fill(wandb.entity, of("WANDB_ENTITY"));
  fill(wandb.experiment, of("WANDB_RUN_ID"));
  fill(wandb.experiment, folder_name(options.directory));
  wandb.experiment = as_wandb_id(wandb.experiment);
  fill(wandb.group, of("WANDB_RUN_GROUP"));
  fill(wandb.group, wandb.experiment);
  fill(wandb.job_type, of("WANDB_JOB_TYPE"));
  fill(wandb.notes, of("WANDB_NOTES"));
  if (wandb.tags.empty()) wandb.tags = split_tags(of("WANDB_TAGS"));
  if (!wandb.resume) wandb.resume = resume_by(of("WANDB_RESUME"));
  run.folder = of("WANDB_DIR");
  fill(run.folder, options.directory);
  if (of("WANDB_DISABLE_CODE") != "true") run.code = of("WANDB_CODE_DIR");
  switch (wandb.runs) {
    case WandbOptions::Runs::rank_0:
      if (options.rank != 0) return std::nullopt;
      run.id = wandb.experiment;
      run.name = of("WANDB_NAME");
      fill(run.name, wandb.experiment);
      break;
    case WandbOptions::Runs::node:
      if (options.local_rank != 0) return std::nullopt;
      run.id = concat(wandb.experiment, "-node-", options.node_rank);
      run.name = concat("node-", options.node_rank);
      break;
    case WandbOptions::Runs::rank:
      run.id = concat(wandb.experiment, "-", options.rank);
      run.name = concat("rank-", options.rank);
      break;
  }
  return run;
}

}  // namespace lockstep
