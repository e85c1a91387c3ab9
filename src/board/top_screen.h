#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep {

/// What a terminal can show of a text that others wrote: no control characters, no broken UTF-8, at
/// most `width` letters; shorter ones are filled up.
std::string terminal_cell(std::string_view text, std::size_t width, bool to_right = false);

/// Values as a line of blocks, the newest at the right; the mean of those that share a letter.
std::string spark_line(const std::vector<double>& values, std::size_t width);

struct TopView {
  nlohmann::json runs;    // as /api/runs has them
  nlohmann::json series;  // of the chosen run, as /api/series
  nlohmann::json events;  // of the chosen run, as /api/events
  std::size_t chosen = 0;
  std::size_t width = 80;
  std::size_t height = 24;
  bool colour = false;
  double now = 0;  // seconds since 1970
};

/// Runs in the order in which they are shown: those that run first, then by their last word.
void sort_for_top(nlohmann::json& runs);

/// The lines of the screen: all runs, and of the chosen one curves and what happened last.
std::vector<std::string> top_screen(const TopView& view);

}  // namespace lockstep
