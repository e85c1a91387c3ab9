#include "launch/worker_command.h"

#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "launch/option_values.h"
#include "launch/python_template.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// What torchrun's --run-path does in a child of its own.
constexpr const char* kRunPath =
    "import runpy, sys; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')";

bool is_file(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_executable(const std::string& path) {
  return is_file(path) && ::access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> find_on_path(const std::string& name, const Environment& environment) {
  const std::string path = environment.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (const std::string_view folder : split(path, ':')) {
    const std::string file = concat(folder.empty() ? "." : folder, "/", name);
    if (is_executable(file)) {
      return file;
    }
  }
  return std::nullopt;
}

std::string find_python(const Environment& environment) {
  if (const auto named = environment.get("PYTHON_EXEC"); named && !named->empty()) {
    const bool is_path = named->find('/') != std::string::npos;
    const auto found = is_path ? (is_executable(*named) ? named : std::nullopt)
                               : find_on_path(*named, environment);
    if (!found) {
      throw InvalidArgument(concat("PYTHON_EXEC is '", *named,
                                   "'; there is no such program; set it to a Python interpreter"));
    }
    return *found;
  }
  if (const auto folder = environment.get("VIRTUAL_ENV"); folder && !folder->empty()) {
    if (const std::string python = *folder + "/bin/python"; is_executable(python)) {
      return python;
    }
  }
  for (const char* name : {"python3", "python"}) {
    if (const auto found = find_on_path(name, environment)) {
      return *found;
    }
  }
  throw InvalidArgument(
      "there is no python3 on PATH; activate a virtual environment, set PYTHON_EXEC, or give "
      "--no-python if the program is no Python script");
}

// The program that a #! line names: that behind env, where env is used to find it.
std::string_view interpreter_of(std::string_view line) {
  std::string_view found;
  for (const std::string_view word : split(line, ' ')) {
    if (word.empty() ||
        (!found.empty() && (word.starts_with('-') || word.find('=') != word.npos))) {
      continue;
    }
    const std::string_view name = word.substr(word.rfind('/') + 1);
    const bool after_env = found == "env";
    if (!found.empty() && !after_env) {
      break;
    }
    found = name;
  }
  return found;
}

// Whether the system can start the file by itself, and Python is not what it would start.
bool is_native(const std::string& path) {
  if (path.ends_with(".py") || !is_executable(path)) {
    return false;
  }
  std::ifstream file(path, std::ios::binary);
  std::string line(128, '\0');  // the kernel reads no more of a #! line either
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(file.gcount()));
  if (line.starts_with("\x7f"
                       "ELF")) {
    return true;
  }
  if (!line.starts_with("#!")) {
    return false;
  }
  const std::string_view rest = std::string_view(line).substr(2);
  const std::string_view interpreter = interpreter_of(trim(rest.substr(0, rest.find('\n'))));
  return !interpreter.starts_with("python") && !interpreter.starts_with("pypy");
}

[[noreturn]] void reject_missing(const std::string& script) {
  struct stat about;
  if (::stat(script.c_str(), &about) != 0 && errno == EACCES) {
    throw InvalidArgument(
        concat("'", script, "' cannot be reached; check the permissions of its folder"));
  }
  std::error_code ignored;
  const std::string place = script.starts_with('/')
                                ? ""
                                : concat(" in ", std::filesystem::current_path(ignored).string());
  const bool could_be_program = script.find('/') == std::string::npos && !script.ends_with(".py");
  throw InvalidArgument(concat("there is no file '", script, "'", place,
                               could_be_program ? ", and no such program on PATH" : ""));
}

// The file as execve() wants it, or as execvp() would find it.
std::string find_program(const std::string& script, const Environment& environment) {
  if (script.find('/') == std::string::npos) {
    if (const auto found = find_on_path(script, environment)) {
      return *found;
    }
    if (is_executable(script)) {
      throw InvalidArgument(concat("there is no program '", script,
                                   "' on PATH; for the one in this folder write ./", script));
    }
    reject_missing(script);
  }
  if (is_executable(script)) {
    return script;
  }
  if (!is_file(script)) {
    reject_missing(script);
  }
  throw InvalidArgument(concat("'", script, "' is not executable; run chmod +x ", script,
                               ", or leave --no-python out if it is a Python script"));
}

void check_python_script(const std::string& script) {
  if (script == "-") {
    return;  // Python reads the program from standard input
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(script, ignored)) {
    if (is_file(script + "/__main__.py")) {
      return;
    }
    throw InvalidArgument(concat("'", script, "' is a folder without __main__.py; give a script"));
  }
  if (!std::filesystem::exists(script, ignored)) {
    reject_missing(script);
  }
  if (::access(script.c_str(), R_OK) != 0) {
    throw InvalidArgument(concat("'", script, "' cannot be read; check its permissions"));
  }
}

std::map<std::string, std::string, std::less<>> names_of(int local_rank) {
  return {{"local_rank", std::to_string(local_rank)}};
}

// The program to run without Python: because that was said, or because the file is one.
std::optional<std::string> native_program(const RunOptions& options,
                                          const Environment& environment) {
  if (options.run_path || options.module) {
    return std::nullopt;
  }
  if (options.no_python) {
    return find_program(options.script, environment);
  }
  const bool is_path = options.script.find('/') != std::string::npos;
  if (is_native(options.script)) {
    return is_path ? options.script : "./" + options.script;
  }
  std::error_code ignored;
  if (is_path || options.script.ends_with(".py") ||
      std::filesystem::exists(substitute(options.script, names_of(0)), ignored)) {
    return std::nullopt;
  }
  const auto found = find_on_path(options.script, environment);
  return found && is_native(*found) ? found : std::nullopt;
}

}  // namespace

std::vector<std::string> WorkerCommand::argv(int local_rank) const {
  std::vector<std::string> result = words;
  const auto names = names_of(local_rank);
  for (std::size_t i = 1; i < result.size(); ++i) {
    result[i] = substitute(result[i], names);
  }
  return result;
}

WorkerCommand find_worker_command(const RunOptions& options, const Environment& environment) {
  WorkerCommand command;
  std::vector<std::string>& words = command.words;
  if (const auto program = native_program(options, environment)) {
    words = {*program};
  } else {
    if (!options.module) {
      // One name for each worker is possible; that of the first stands for all here.
      check_python_script(substitute(options.script, names_of(0)));
    }
    words = {find_python(environment), "-u"};
    if (options.run_path) {
      words.insert(words.end(), {"-c", kRunPath});
    } else if (options.module) {
      words.push_back("-m");
    }
    words.push_back(options.script);
  }
  if (!options.use_env) {
    words.push_back("--local-rank=${local_rank}");
  }
  words.insert(words.end(), options.script_arguments.begin(), options.script_arguments.end());
  return command;
}

}  // namespace lockstep
