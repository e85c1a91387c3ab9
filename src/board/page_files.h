#pragma once

#include <span>
#include <string_view>

namespace lockstep {

/// A file of the page, inside the program.
struct PageFile {
  std::string_view path;  // "/board.js"
  std::string_view type;
  std::string_view content;
};

std::span<const PageFile> page_files();

}  // namespace lockstep
