#include "shm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep {
namespace {

[[noreturn]] void fail_with_errno(const std::string& what) {
  throw Error(concat(what, ": ", std::strerror(errno)));
}

void reserve_memory(int descriptor, const SharedSegment::Range& own) {
  if (own.bytes == 0) return;
  if (fallocate(descriptor, 0, static_cast<off_t>(own.begin), static_cast<off_t>(own.bytes)) != 0) {
    fail_with_errno(concat("reserving ", own.bytes, " bytes"));
  }
}

}  // namespace

SegmentOffer SegmentOffer::of_this_process(int descriptor) {
  std::random_device random;
  return {.process_id = getpid(),
          .descriptor = descriptor,
          .mark = std::uint64_t{random()} << 32 | random()};
}

SegmentOffer SegmentOffer::parse(const std::string& text) {
  SegmentOffer offer;
  std::istringstream(text) >> offer.process_id >> offer.descriptor >> offer.mark;
  return offer;
}

std::string SegmentOffer::to_text() const {
  return concat(process_id, " ", descriptor, " ", mark);
}

bool may_share_memory() {
  const char* wanted = std::getenv("LOCKSTEP_SHM");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

SharedSegment SharedSegment::create(std::size_t bytes, const Range& own) {
  // Beyond this limit the kernel would send a signal that ends the process.
  rlimit largest_file{};
  if (getrlimit(RLIMIT_FSIZE, &largest_file) == 0 && largest_file.rlim_cur < bytes) {
    throw Error(concat("it needs ", bytes, " bytes, but the limit on file sizes (ulimit -f) is ",
                       largest_file.rlim_cur));
  }
  UniqueFd descriptor(memfd_create("lockstep", MFD_CLOEXEC));
  if (descriptor.get() < 0) fail_with_errno("memfd_create");
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    fail_with_errno(concat("making a file of ", bytes, " bytes"));
  }
  reserve_memory(descriptor.get(), own);
  return {std::move(descriptor), bytes};
}

SharedSegment SharedSegment::open(int process_id, int descriptor, std::size_t bytes,
                                  const Range& own) {
  const std::string path = concat("/proc/", process_id, "/fd/", descriptor);
  UniqueFd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (opened.get() < 0) fail_with_errno(concat("opening ", path));
  // Touching pages that the file does not have would end the process.
  struct stat status {};
  if (fstat(opened.get(), &status) != 0) fail_with_errno(path);
  if (!S_ISREG(status.st_mode) || static_cast<std::size_t>(status.st_size) != bytes) {
    throw Error(concat(path, " is something else than a segment of ", bytes, " bytes"));
  }
  reserve_memory(opened.get(), own);
  SharedSegment segment(std::move(opened), bytes);
  segment.take_descriptor();  // and close it
  return segment;
}

SharedSegment::SharedSegment(UniqueFd descriptor, std::size_t bytes)
    : descriptor_(std::move(descriptor)), bytes_(bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
  if (data == MAP_FAILED) fail_with_errno(concat("mapping ", bytes, " bytes"));
  data_ = static_cast<std::byte*>(data);
}

SharedSegment::~SharedSegment() {
  if (data_) munmap(data_, bytes_);
}

}  // namespace lockstep
