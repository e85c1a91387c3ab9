#include "flat_checkpoint.h"

#include <cstdio>

#include "lockstep/error.h"

namespace train_llm {

void FlatCheckpoint::on_save(std::int64_t step) {
  if (world_.rank() != 0) return;
  try {
    const std::string folder = lockstep::concat(directory_.snapshots(), "/step_", step);
    write_flat(directory_.path(), lockstep::read_snapshot(folder), format_);
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "train_llm: the flat files of step %lld are not written: %s\n",
                 static_cast<long long>(step), error.what());
  }
}

}  // namespace train_llm
