#include "launch/completion.h"

#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// The first sentence, which is what fits beside a name.
std::string summary(std::string_view help) {
  const std::size_t end = std::min(help.find(". "), help.find(": "));
  std::string text(help.substr(0, end));
  if (text.ends_with('.')) {
    text.pop_back();
  }
  return text;
}

// In single quotes for a shell; `quote` is what stands for a quote inside them.
std::string quoted(std::string_view text, std::string_view quote) {
  std::string result = "'";
  for (const char c : text) {
    c == '\'' ? result += quote : result += c;
  }
  return result + "'";
}

std::string names_of(std::span<const Entry> commands) {
  std::string names;
  for (const Entry& command : commands) {
    names += concat(names.empty() ? "" : " ", command.term);
  }
  return names;
}

// "-r" and "--redirects", as patterns of a case or words of a list.
std::string spellings(const Option& option, std::string_view separator) {
  const std::string letter = option.letter == 0 ? "" : concat("-", option.letter, separator);
  return concat(letter, "--", option.name);
}

// The cases of a shell's `case` by command, each with what it does with the command's options.
std::string cases(std::span<const Entry> more, std::string_view before, std::string_view after) {
  std::string text;
  for (const Entry& command : more) {
    text += concat("    ", command.term, ") ", before, command.text, after, " ;;\n");
  }
  return text;
}

std::string bash_script(std::span<const Entry> commands, std::span<const Entry> more) {
  std::string words;
  std::string launch_only;
  std::string values;      // what follows which option
  std::string with_value;  // options that take the next word
  for (const Option& option : all_options()) {
    const std::string word = concat(spellings(option, " "), option.takes_value() ? "=" : "");
    (option.origin == OptionOrigin::launch ? launch_only : words) += concat(" ", word);
    if (!option.takes_value()) {
      continue;
    }
    with_value += concat(with_value.empty() ? "" : "|", spellings(option, "|"));
    const std::string_view what = !option.choices.empty()               ? "-W"
                                  : option.kind == ValueKind::directory ? "-d"
                                  : option.kind == ValueKind::file      ? "-f"
                                                                        : "";
    if (!what.empty()) {
      values += concat("    ", spellings(option, "|"), ") _lockstep_values ", what,
                       what == "-W" ? concat(" '", option.choices, "'") : "", ";;\n");
    }
  }
  return concat(
      R"sh(# Completion of lockstep for bash. In ~/.bashrc:  source <(lockstep completion bash)
_lockstep_values() {
  mapfile -t COMPREPLY < <(compgen "$@" -- "$cur")
  [[ $1 == -W ]] || compopt -o filenames 2>/dev/null
}

_lockstep() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} i word
  COMPREPLY=()
  # bash cuts --store=local into three words.
  if [[ $cur == = ]]; then cur=
  elif [[ $prev == = && COMP_CWORD -gt 1 ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  if ((COMP_CWORD == 1)); then
    _lockstep_values -W ')sh",
      names_of(commands), R"sh('
    return
  fi
  word=
  case ${COMP_WORDS[1]} in
)sh",
      cases(more, "word='", "'"), R"sh(    *) ;;
  esac
  # Words without dashes are commands of the command, and its first word.
  if [[ -n $word && ($cur == -* || ($COMP_CWORD -eq 2 && $word == [a-z]*)) ]]; then
    _lockstep_values -W "$word"
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    return
  fi
  [[ ${COMP_WORDS[1]} == run || ${COMP_WORDS[1]} == launch ]] || { _lockstep_values -f; return; }
  # After the script everything is its own.
  for ((i = 2; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    case $word in
    )sh",
      with_value, R"sh()
      [[ ${COMP_WORDS[i+1]} == = ]] && ((++i))
      ((++i))
      # host:port is three words as well.
      while [[ ${COMP_WORDS[i+1]} == : ]]; do ((i += 2)); done ;;
    -*) ;;
    *) _lockstep_values -f; return ;;
    esac
  done
  case $prev in
)sh",
      values, R"sh(    )sh", with_value, R"sh() return ;;
    *)
      if [[ $cur != -* ]]; then _lockstep_values -f; return; fi
      word=')sh",
      words.substr(1), R"sh('
      [[ ${COMP_WORDS[1]} == launch ]] && word+=')sh",
      launch_only, R"sh('
      _lockstep_values -W "$word"
      [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null ;;
  esac
}
complete -F _lockstep lockstep
)sh");
}

// The text inside brackets of an _arguments specification.
std::string zsh_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result;
}

std::string zsh_specification(const Option& option) {
  std::string value;
  if (option.takes_value()) {
    const std::string action = !option.choices.empty() ? concat("(", option.choices, ")")
                               : option.kind == ValueKind::directory ? "_files -/"
                               : option.kind == ValueKind::file      ? "_files"
                                                                     : " ";
    value = concat(":", zsh_text(option.placeholder), ":", action);
  }
  const auto specify = [&](std::string_view name, std::string_view equals) {
    return concat("    ",
                  quoted(concat(name, option.takes_value() ? equals : "", "[",
                                zsh_text(summary(option.help)), "]", value),
                         "'\\''"),
                  "\n");
  };
  const std::string letter = option.letter == 0 ? "" : specify(concat("-", option.letter), "+");
  return letter + specify(concat("--", option.name), "=");
}

std::string zsh_script(std::span<const Entry> commands, std::span<const Entry> more) {
  std::string text = R"sh(#compdef lockstep
# Completion of lockstep for zsh. Put this into a folder of $fpath as _lockstep.
_lockstep() {
  local -a commands options
  commands=(
)sh";
  for (const Entry& command : commands) {
    text +=
        concat("    ", quoted(concat(command.term, ":", zsh_text(command.text)), "'\\''"), "\n");
  }
  text += R"sh(  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  options=(
)sh";
  std::string launch_only;
  for (const Option& option : all_options()) {
    (option.origin == OptionOrigin::launch ? launch_only : text) += zsh_specification(option);
  }
  return concat(text, R"sh(  )
  [[ $words[2] == launch ]] && options+=(
)sh",
                launch_only, R"sh(  )
  case $words[2] in
    run|launch)
      shift words
      ((CURRENT--))
      _arguments -s $options '1:script:_files' '*:::argument:_files' ;;
)sh",
                cases(more, "_alternative 'options:option:(", ")' 'files:file:_files'"),
                R"sh(    *) _files ;;
  esac
}
if [[ $funcstack[1] == _lockstep ]]; then _lockstep "$@"; else compdef _lockstep lockstep; fi
)sh");
}

std::string fish_script(std::span<const Entry> commands, std::span<const Entry> more) {
  std::string text =
      "# Completion of lockstep for fish. In config.fish:  lockstep completion fish | source\n";
  for (const Entry& command : commands) {
    text += concat("complete -c lockstep -n __fish_use_subcommand -f -a ", command.term, " -d ",
                   quoted(command.text, "\\'"), "\n");
  }
  for (const Option& option : all_options()) {
    text += concat("complete -c lockstep -n '__fish_seen_subcommand_from ",
                   option.origin == OptionOrigin::launch ? "launch" : "run launch", "' -l ",
                   option.name);
    if (option.letter != 0) {
      text += concat(" -s ", option.letter);
    }
    if (!option.choices.empty()) {
      text += concat(" -x -a '", option.choices, "'");
    } else if (option.takes_value()) {
      text += option.kind == ValueKind::text ? " -x" : " -r";
    }
    text += concat(" -d ", quoted(summary(option.help), "\\'"), "\n");
  }
  for (const Entry& command : more) {
    for (std::string_view word : split(command.text, ' ')) {
      const bool takes_value = word.ends_with("=");
      if (takes_value) word.remove_suffix(1);
      if (!word.starts_with("-")) {
        text += concat("complete -c lockstep -n '__fish_seen_subcommand_from ", command.term,
                       "; and test (count (commandline -opc)) -eq 2' -f -a ", word, "\n");
      }
      if (!word.starts_with("--")) continue;
      text += concat("complete -c lockstep -n '__fish_seen_subcommand_from ", command.term, "' -l ",
                     word.substr(2), takes_value ? " -r" : "", "\n");
    }
  }
  return text;
}

}  // namespace

std::string completion_script(std::string_view shell, std::span<const Entry> commands,
                              std::span<const Entry> more) {
  if (shell == "bash") {
    return bash_script(commands, more);
  }
  if (shell == "zsh") {
    return zsh_script(commands, more);
  }
  if (shell == "fish") {
    return fish_script(commands, more);
  }
  throw InvalidArgument(concat("there is no completion for '", shell, "'; say bash, zsh or fish"));
}

}  // namespace lockstep
