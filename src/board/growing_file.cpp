#include "board/growing_file.h"

#include <sys/stat.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr std::size_t kReadBlock = 1 << 20;
constexpr std::size_t kLongestLine = 16 << 20;

}  // namespace

bool GrowingFile::poll(const RootFolder& root, const Reader& reader) {
  const UniqueFd file = root.open_file(path_);
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0) {
    if (inode_ == 0) return false;
    *this = GrowingFile(path_);
    reader.begins_anew();
    return true;
  }
  bool news = false;
  if (inode_ != 0 && (about.st_ino != inode_ || about.st_dev != device_ || about.st_size < seen_)) {
    offset_ = seen_ = 0;
    reader.begins_anew();
    news = true;
  }
  inode_ = about.st_ino;
  device_ = about.st_dev;
  changed_ = static_cast<double>(about.st_mtim.tv_sec) + 1e-9 * about.st_mtim.tv_nsec;
  if (about.st_size == seen_) return news;
  seen_ = about.st_size;
  std::string text;
  for (std::int64_t end = offset_; end < seen_;) {
    const std::size_t had = text.size();
    text.resize(had + kReadBlock);
    const ssize_t got = ::pread(file.get(), text.data() + had, kReadBlock, end);
    text.resize(had + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got <= 0) break;
    end += got;
    std::string_view rest = text;
    for (std::size_t newline = rest.find('\n', had); newline != rest.npos;
         newline = rest.find('\n')) {
      reader.line(rest.substr(0, newline), offset_);
      rest.remove_prefix(newline + 1);
      offset_ += static_cast<std::int64_t>(newline) + 1;
      news = true;
    }
    text.erase(0, text.size() - rest.size());
    if (text.size() > kLongestLine) {  // no line of ours; what is left of it is skipped as well
      offset_ += static_cast<std::int64_t>(text.size());
      text.clear();
    }
  }
  return news;
}

}  // namespace lockstep
