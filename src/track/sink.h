#pragma once

#include <string>

#include "track/record.h"

namespace lockstep {

/// One kind of files. All calls come from one thread; each may throw SystemError, after which
/// open() is called again, later.
class Sink {
 public:
  virtual ~Sink() = default;

  virtual std::string name() const = 0;
  virtual void open() = 0;
  virtual void write(const TrackRecord& record) = 0;
  /// What was written since the last call reaches the file, or nothing of it does.
  virtual void flush() = 0;
  virtual void finish(bool succeeded) = 0;
};

}  // namespace lockstep
