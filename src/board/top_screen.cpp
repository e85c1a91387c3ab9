#include "board/top_screen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>

#include "board/bounded_json.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

struct TopColumn {
  const char* title;
  std::size_t width;
  bool to_right;
};
constexpr std::array<TopColumn, 7> kTopColumns{{{"STATE", 8, false},
                                                {"STEP", 17, true},
                                                {"LOSS", 9, true},
                                                {"TOK/S", 9, true},
                                                {"RANKS", 5, true},
                                                {"RECOV", 5, true},
                                                {"LAST WORD", 10, true}}};

std::string short_number(double value) {
  char text[32];
  if (!std::isfinite(value)) return "-";
  if (value != 0 && (std::abs(value) >= 1e6 || std::abs(value) < 1e-3)) {
    std::snprintf(text, sizeof text, "%.2e", value);
  } else if (std::abs(value) >= 1000) {
    std::snprintf(text, sizeof text, "%.0f", value);
  } else {
    std::snprintf(text, sizeof text, "%.4g", value);
  }
  return text;
}

std::string since(double seconds) {
  if (seconds < 60) return concat(static_cast<int>(std::max(0.0, seconds)), " s ago");
  if (seconds < 3600) return concat(static_cast<int>(seconds / 60), " min ago");
  if (seconds < 86'400) return concat(static_cast<int>(seconds / 3600), " h ago");
  return concat(static_cast<long>(seconds / 86'400), " d ago");
}

double latest(const json& run, const char* name) {
  return number_of(run["latest"], name, std::numeric_limits<double>::quiet_NaN());
}

std::string painted(const std::string& text, const char* code, bool colour) {
  return colour ? concat("\x1b[", code, "m", text, "\x1b[0m") : text;
}

const char* colour_of(const std::string& state) {
  if (state == "running") return "36";
  if (state == "finished") return "32";
  return state == "silent" ? "2" : "31";
}

std::size_t name_width(std::size_t width) {
  std::size_t rest = 2;
  for (const TopColumn& column : kTopColumns) rest += column.width + 2;
  return width > rest + 12 ? width - rest : 12;
}

std::string run_line(const json& run, const TopView& view, bool chosen) {
  const std::int64_t total = whole_of(run, "total_steps");
  std::string step = std::to_string(whole_of(run, "step"));
  if (total > 0) step += concat("/", total);
  const std::string state = text_of(run, "state");
  const std::int64_t recoveries = whole_of(run, "recoveries");
  const std::array<std::string, 7> cells{state,
                                         step,
                                         short_number(latest(run, "loss")),
                                         short_number(latest(run, "tok/s")),
                                         std::to_string(whole_of(run, "world_size")),
                                         recoveries == 0 ? "-" : std::to_string(recoveries),
                                         since(view.now - number_of(run, "updated"))};
  std::string line = chosen ? "> " : "  ";
  line += terminal_cell(text_of(run, "name"), name_width(view.width));
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string cell = terminal_cell(cells[i], kTopColumns[i].width, kTopColumns[i].to_right);
    line += "  " + (i == 0 ? painted(cell, colour_of(state), view.colour) : cell);
  }
  return line;
}

std::string head_line(const TopView& view) {
  std::string line = "  " + terminal_cell("RUN", name_width(view.width));
  for (const TopColumn& column : kTopColumns) {
    line += "  " + terminal_cell(column.title, column.width, column.to_right);
  }
  return painted(line, "2", view.colour);
}

void add_curves(const TopView& view, std::vector<std::string>& lines) {
  const auto all = view.series.find("series");
  if (all == view.series.end() || !all->is_object()) return;
  const std::size_t room = view.width > 44 ? view.width - 40 : 8;
  for (const auto& [name, curve] : all->items()) {
    std::vector<double> values;
    for (const json& value : curve.value("mean", json::array())) {
      if (value.is_number()) values.push_back(value.get<double>());
    }
    if (values.empty()) continue;
    lines.push_back(concat("  ", terminal_cell(name, 16), "  ", spark_line(values, room), "  ",
                           terminal_cell(short_number(values.back()), 10)));
  }
}

std::string event_text(const json& event) {
  for (const char* name : {"text", "reason"}) {
    if (const std::string text = text_of(event, name); !text.empty()) return text;
  }
  return "";
}

void add_events(const TopView& view, std::size_t room, std::vector<std::string>& lines) {
  const auto all = view.events.find("events");
  if (all == view.events.end() || !all->is_array()) return;
  std::vector<std::string> found;
  for (auto event = all->rbegin(); event != all->rend() && found.size() < room; ++event) {
    const std::string kind = text_of(*event, "kind");
    // One for each rank would push out what matters.
    if (kind == "worker_start" || kind == "worker_hello" || kind == "recovers") continue;
    const auto seconds = static_cast<std::time_t>(whole_of(*event, "time"));
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    char clock[16];
    std::strftime(clock, sizeof clock, "%H:%M:%S", &parts);
    const std::size_t width = view.width > 32 ? view.width - 32 : 8;
    found.push_back(concat("  ", clock, "  ", terminal_cell(kind, 16), "  ",
                           terminal_cell(event_text(*event), width)));
  }
  lines.insert(lines.end(), found.rbegin(), found.rend());
}

}  // namespace

std::string terminal_cell(std::string_view text, std::size_t width, bool to_right) {
  std::string shown;
  std::size_t letters = 0;
  // A dump and a parse replace what is no UTF-8.
  const std::string valid = parse_bounded(dump_text(json(text))).value_or("").get<std::string>();
  for (std::size_t i = 0; i < valid.size() && letters < width; ++letters) {
    const auto byte = static_cast<unsigned char>(valid[i]);
    const std::size_t length = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    // Also those of Latin-1, which some terminals obey.
    const bool control = byte < 0x20 || byte == 0x7f ||
                         (byte == 0xc2 && static_cast<unsigned char>(valid[i + 1]) < 0xa0);
    shown += control ? "?" : valid.substr(i, length);
    i += length;
  }
  const std::string blanks(width - letters, ' ');
  return to_right ? blanks + shown : shown + blanks;
}

std::string spark_line(const std::vector<double>& values, std::size_t width) {
  constexpr std::array<const char*, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> means;
  const std::size_t count = std::min(width, values.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * values.size() / count, end = (i + 1) * values.size() / count;
    double sum = 0;
    for (std::size_t k = begin; k < end; ++k) sum += values[k];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  std::string line(width - count, ' ');
  if (means.empty()) return line;
  const auto [low, high] = std::ranges::minmax(means);
  for (const double mean : means) {
    const double part = high > low ? (mean - low) / (high - low) : 0;
    const auto block = static_cast<std::size_t>(std::lround(7 * (std::isfinite(part) ? part : 0)));
    line += kBlocks[std::min<std::size_t>(block, 7)];
  }
  return line;
}

void sort_for_top(json& runs) {
  std::vector<json> list(runs.begin(), runs.end());
  std::ranges::stable_sort(list, [](const json& one, const json& other) {
    const bool runs_now = text_of(one, "state") == "running";
    if (runs_now != (text_of(other, "state") == "running")) return runs_now;
    return number_of(one, "updated") > number_of(other, "updated");
  });
  runs = list;
}

std::vector<std::string> top_screen(const TopView& view) {
  std::vector<std::string> lines;
  std::size_t running = 0;
  for (const json& run : view.runs) running += text_of(run, "state") == "running" ? 1 : 0;
  lines.push_back(painted(concat("lockstep top: ", view.runs.size(),
                                 view.runs.size() == 1 ? " run, " : " runs, ", running, " running"),
                          "1", view.colour));
  lines.push_back(head_line(view));
  // The chosen run stays in sight; curves and events have the lower half.
  const std::size_t room = std::max<std::size_t>(3, view.height / 2 > 3 ? view.height / 2 - 3 : 3);
  const std::size_t first = view.chosen < room ? 0 : view.chosen - room + 1;
  for (std::size_t i = first; i < view.runs.size() && i < first + room; ++i) {
    lines.push_back(run_line(view.runs[i], view, i == view.chosen));
  }
  if (view.runs.size() > room) {
    lines.push_back(painted(concat("  ... ", view.runs.size() - room, " more"), "2", view.colour));
  }
  lines.emplace_back();
  add_curves(view, lines);
  lines.emplace_back();
  if (lines.size() < view.height) add_events(view, view.height - lines.size() - 1, lines);
  return lines;
}

}  // namespace lockstep
