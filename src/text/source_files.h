#pragma once

#include <string>
#include <vector>

namespace lockstep {

enum class TextFormat { json, plain, arrow, table };

/// Whether files with columns between tabs (.tsv) are looked for.
enum class Tables { ignored, read };

struct SourceFile {
  std::string path;
  TextFormat format = TextFormat::json;
};

/// The files of a source, in order (see TextSource). Throws InvalidArgument where there are none
/// for the split, and says which splits there are.
std::vector<SourceFile> find_source_files(const std::string& path, const std::string& split,
                                          Tables tables = Tables::ignored);

}  // namespace lockstep
