#include "launch/coordinator_log.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Found {
  std::optional<CoordinatorRecord> last;
  bool ends_whole = true;  // a launcher that is killed may leave half a line
};

Found read_records(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file) content << file.rdbuf();
  const std::string text = content.str();
  Found found;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const auto line = std::string_view(text).substr(begin, end - begin);
    if (auto record = coordinator_record_from_json(line)) found.last = std::move(record);
    begin = end + 1;
  }
  found.ends_whole = begin == text.size();
  return found;
}

void write_all(int file, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(concat("writing ", path));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fdatasync(file) != 0) throw_errno(concat("syncing ", path));
}

}  // namespace

CoordinatorLog::CoordinatorLog(const std::string& path, const std::string& run_id) : path_(path) {
  Found found = read_records(path);
  const bool goes_on = found.last && found.last->run_id == run_id &&
                       found.last->phase != CoordinatorRecord::Phase::finished;
  const int mode = goes_on ? 0 : O_TRUNC;
  file_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | mode, 0600));
  if (!file_) throw_errno(concat("opening ", path));
  if (!goes_on) return;
  last_ = std::move(found.last);
  if (!found.ends_whole) write_all(file_.get(), "\n", path_);
}

void CoordinatorLog::append(const CoordinatorRecord& record) {
  write_all(file_.get(), to_json(record) + "\n", path_);
}

}  // namespace lockstep
