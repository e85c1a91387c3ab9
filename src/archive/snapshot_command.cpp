#include "archive/snapshot_command.h"

#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "archive/checkpoint.h"
#include "archive/convert.h"
#include "archive/diff.h"
#include "archive/snapshot_directory.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Arguments {
  std::vector<std::string> paths;
  std::string part;
};

Arguments parse(const std::string& command, const std::vector<std::string>& words,
                std::size_t path_count, bool takes_part) {
  Arguments parsed;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (takes_part && word.starts_with("--part=")) {
      parsed.part = word.substr(7);
    } else if (takes_part && word == "--part" && i + 1 < words.size()) {
      parsed.part = words[++i];
    } else if (word.starts_with("-") && word != "-") {
      throw InvalidArgument(concat("snapshot ", command, " has no option '", word,
                                   "'; see `lockstep snapshot --help`"));
    } else {
      parsed.paths.push_back(word);
    }
  }
  if (parsed.paths.size() != path_count) {
    throw InvalidArgument(concat("snapshot ", command, " takes ", path_count,
                                 path_count == 1 ? " path" : " paths", ", not ",
                                 parsed.paths.size(), "; see `lockstep snapshot --help`"));
  }
  return parsed;
}

std::string amount(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  std::ostringstream text;
  text << std::fixed << std::setprecision(unit == 0 ? 0 : 1) << value << " " << kUnits[unit];
  return text.str();
}

std::uint64_t bytes_of(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return bytes;
}

bool is_directory(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_errno(concat("cannot open '", path, "'"));
  return S_ISDIR(status.st_mode);
}

bool has_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// A run directory stands for the snapshots in it.
std::string snapshots_meant_by(const std::string& path) {
  const std::string inside = path + "/snapshots";
  if (!has_folder(inside) || !find_snapshots(path).empty()) return path;
  return inside;
}

int list(const std::string& directory, std::ostream& out) {
  if (!is_directory(directory)) throw InvalidArgument(concat("'", directory, "' is no directory"));
  const auto latest = read_pointer(directory, kLatest);
  const auto best = read_pointer(directory, kBest);
  const auto all = find_snapshots(directory);
  if (all.empty()) out << "no snapshots in '" << directory << "'\n";
  for (const FoundSnapshot& each : all) {
    out << std::left << std::setw(16) << each.name;
    const std::string problem = find_missing_files(each);
    if (problem.empty()) {
      out << std::setw(22) << each.manifest->time << std::setw(12)
          << amount(bytes_of(*each.manifest));
    } else {
      out << "damaged: " << problem;
    }
    if (each.name == latest) out << " latest";
    if (each.name == best) out << " best";
    out << "\n";
  }
  return 0;
}

void print_part(const std::string& name, const CheckpointPart& part, std::ostream& out) {
  std::uint64_t bytes = 0;
  for (const auto& [tensor_name, tensor] : part.tensors) bytes += tensor.bytes.size();
  out << name << ": " << part.tensors.size() << " tensors, " << amount(bytes) << "\n";
  for (const auto& [tensor_name, tensor] : part.tensors) {
    out << "  " << tensor_name << "  " << describe(tensor.type, tensor.shape) << "\n";
  }
  for (const auto& [key, value] : part.values.items()) {
    out << "  " << key << " = "
        << value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
}

int inspect(const std::string& path, std::ostream& out) {
  const Checkpoint checkpoint = open_checkpoint(path, {.verify = false});
  if (checkpoint.kind == Checkpoint::Kind::torch) {
    out << checkpoint.tree << "\n";
    return 0;
  }
  if (checkpoint.manifest) {
    const Manifest& manifest = *checkpoint.manifest;
    out << checkpoint.path << "\nstep " << manifest.step << ", epoch " << manifest.epoch << ", "
        << manifest.slots << " slots, seed " << manifest.seed << ", " << manifest.time << ", by "
        << manifest.host << ", " << amount(bytes_of(manifest)) << "\n";
  }
  for (const auto& [name, part] : checkpoint.parts) print_part(name, part, out);
  return 0;
}

int verify(const std::string& path, std::ostream& out) {
  const bool is_one =
      !is_directory(path) || ::access(concat(path, "/", kManifestName).c_str(), F_OK) == 0;
  if (is_one) {
    try {
      open_checkpoint(path);
      out << path << ": intact\n";
      return 0;
    } catch (const InvalidArgument& error) {
      out << error.what() << "\n";
      return 1;
    }
  }
  const auto all = find_snapshots(path);
  if (all.empty()) throw InvalidArgument(concat("there are no snapshots in '", path, "'"));
  int code = 0;
  for (const FoundSnapshot& each : all) {
    const std::string problem = find_damage(each);
    out << each.name << ": " << (problem.empty() ? "intact" : problem) << std::endl;
    if (!problem.empty()) code = 1;
  }
  return code;
}

int convert_paths(const Arguments& arguments, std::ostream& out) {
  const Checkpoint source = open_checkpoint(snapshots_meant_by(arguments.paths[0]));
  out << "written: " << convert(source, arguments.paths[1], arguments.part) << "\n";
  for (const std::string& name : source.left_out) out << "left out: " << name << "\n";
  return 0;
}

}  // namespace

const CommandManual& snapshot_manual() {
  static constexpr std::array<CommandWord, 7> kWords{{
      {"list DIRECTORY", "the snapshots of a directory, newest first"},
      {"inspect PATH", "what a snapshot or a file holds: tensors with types and shapes, values"},
      {"verify PATH",
       "reads everything and compares checksums; exit code 1 if anything is "
       "damaged"},
      {"convert SOURCE TARGET",
       "by the name of TARGET: *.pt (what torch.load reads), *.safetensors, or a folder (of a "
       "snapshot: one with model.safetensors; of a .pt file: a directory of snapshots)"},
      {"diff FIRST SECOND", "which tensors differ, and by how much; exit code 1 if any does"},
      {"--part=NAME", "for convert and diff: one part alone, such as model or optimizer"},
      {"-h, --help", "print this"},
  }};
  static constexpr CommandManual kManual{
      .name = "snapshot",
      .arguments = "list|inspect|verify|convert|diff [--part=NAME] PATH...",
      .summary =
          "lockstep snapshot lists, inspects, verifies, converts and compares snapshots and "
          "files of torch.save.",
      .words = kWords,
      .remarks =
          "PATH, SOURCE, FIRST and SECOND are a snapshot (step_<N>, or a directory of "
          "snapshots or a run directory, of which the newest intact one is taken), a .safetensors "
          "file or a "
          "file of torch.save. Nothing in a file is ever executed."};
  return kManual;
}

int snapshot_command(const std::vector<std::string>& arguments, std::ostream& out) {
  if (arguments.empty()) {
    throw InvalidArgument(
        "snapshot needs one of list, inspect, verify, convert, diff; see "
        "`lockstep snapshot --help`");
  }
  const std::string& command = arguments[0];
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (command == "-h" || command == "--help" ||
      (!rest.empty() && (rest[0] == "-h" || rest[0] == "--help"))) {
    out << help_of(snapshot_manual());
    return 0;
  }
  const auto only_path = [&] {
    return snapshots_meant_by(parse(command, rest, 1, false).paths[0]);
  };
  if (command == "list") return list(only_path(), out);
  if (command == "inspect") return inspect(only_path(), out);
  if (command == "verify") return verify(only_path(), out);
  if (command == "convert") return convert_paths(parse(command, rest, 2, true), out);
  if (command == "diff") {
    const Arguments parsed = parse(command, rest, 2, true);
    return print_differences(open_checkpoint(snapshots_meant_by(parsed.paths[0])),
                             open_checkpoint(snapshots_meant_by(parsed.paths[1])), parsed.part, out)
               ? 1
               : 0;
  }
  throw InvalidArgument(concat("there is no command 'snapshot ", command,
                               "'; there are list, inspect, verify, convert, diff"));
}

}  // namespace lockstep
