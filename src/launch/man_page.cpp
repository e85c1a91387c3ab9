#include "launch/man_page.h"

#include <span>

#include "launch/manual_text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// troff reads a backslash as an escape, and a dot or an apostrophe at the start of a line as a
// request; an unescaped '-' would print as a hyphen that cannot be copied into a shell.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else if (c == '\'') {
      result += "\\(aq";
    } else if (c == '.' && result.empty()) {
      result += "\\&.";
    } else {
      result += c;
    }
  }
  return result;
}

std::string paragraph(std::string_view text) {
  return concat(".PP\n", escaped(text), "\n");
}

std::string man_entry(std::string_view term, std::string_view text) {
  return concat(".TP\n.B ", escaped(term), "\n", escaped(text), "\n");
}

std::string entries(std::string_view title, std::span<const Entry> list) {
  std::string text = concat(".SH ", title, "\n");
  for (const Entry& each : list) {
    text += man_entry(each.term, each.text);
  }
  return text;
}

std::string options() {
  std::string text = concat(".SH OPTIONS\n", escaped(spelling_rules()), "\n");
  const Option* previous = nullptr;
  for (const Option& option : all_options()) {
    if (previous == nullptr || previous->group != option.group) {
      text += concat(".SS ", heading(option.group), "\n");
    }
    const std::string more = remarks(option);
    const std::string_view only =
        option.origin == OptionOrigin::launch ? "Only for lockstep launch. " : "";
    text += man_entry(spelled(option),
                      concat(only, option.help, more.empty() ? "" : concat(" (", more, ")")));
    previous = &option;
  }
  return text;
}

std::string capitals(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return result;
}

std::string section(const CommandManual& manual) {
  std::string text = concat(".SH LOCKSTEP ", capitals(manual.name), "\n.B lockstep ", manual.name,
                            "\n", escaped(manual.arguments), "\n", paragraph(manual.summary));
  for (const CommandWord& word : manual.words) text += man_entry(word.term, word.help);
  return manual.remarks.empty() ? text : text + paragraph(manual.remarks);
}

}  // namespace

std::string man_page(std::string_view version, std::span<const CommandManual> more) {
  std::string text = concat(
      ".TH LOCKSTEP-RUN 1 \"\" \"lockstep ", escaped(version), "\" \"lockstep\"\n",
      ".SH NAME\nlockstep-run, lockstep-launch, lockstep-stack, lockstep-doctor \\- start the "
      "workers "
      "of a training job, see where they stand, and what would go wrong\n",
      ".SH SYNOPSIS\n.B lockstep run\n[\\fIOPTIONS\\fR] \\fISCRIPT\\fR [\\fIARGUMENTS\\fR]\n.br\n",
      ".B lockstep launch\n[\\fIOPTIONS\\fR] \\fISCRIPT\\fR [\\fIARGUMENTS\\fR]\n.br\n",
      ".B lockstep stack\n[\\fB\\-\\-limit\\fR \\fISECONDS\\fR] [\\fIJOB\\fR]\n.br\n",
      ".B lockstep doctor\n[\\fIOPTIONS\\fR]\n.br\n",
      ".B lockstep sbatch\n|\n.B qsub\n|\n.B manifest\n[\\fIOPTIONS\\fR] \\-\\- "
      "[\\fIOPTIONS OF RUN\\fR] \\fISCRIPT\\fR [\\fIARGUMENTS\\fR]\n",
      ".SH DESCRIPTION\n", escaped(description(LaunchCommand::run)), "\n",
      paragraph(description(LaunchCommand::launch)), paragraph(program_rules()),
      paragraph(stack_description()), paragraph(doctor_description()),
      paragraph(jobs_description()), options());
  for (const CommandManual& manual : more) text += section(manual);
  text += concat(entries("ENVIRONMENT", launcher_variables()),
                 entries("ENVIRONMENT OF WORKERS", worker_variables()),
                 entries("EXIT STATUS", exit_statuses()), ".SH EXAMPLES\n");
  for (const Entry& example : examples()) {
    text += concat(".PP\n", escaped(example.text), "\n.PP\n.nf\n.RS\n", escaped(example.term),
                   "\n.RE\n.fi\n");
  }
  return text + ".SH SEE ALSO\n.BR torchrun (1)\n";
}

}  // namespace lockstep
