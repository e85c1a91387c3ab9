#include "rpc/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <utility>

#include "lockstep/rpc_error.h"

namespace lockstep::rpc {
namespace {

// Sizes come in steps of a quarter of a power of two, so that different messages use one segment.
std::size_t step_up(std::size_t bytes) {
  constexpr std::size_t kSmallest = 64 << 10;
  if (bytes <= kSmallest) return kSmallest;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

UniqueFd make_memfd(std::size_t bytes) {
  rlimit largest_file{};  // beyond it the kernel would send a signal that ends the process
  if (getrlimit(RLIMIT_FSIZE, &largest_file) == 0 && largest_file.rlim_cur < bytes) return {};
  UniqueFd descriptor(memfd_create("lockstep-rpc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor) return {};
  // Reserved at once: a machine without enough memory says so here and not by a signal later.
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0 ||
      fallocate(descriptor.get(), 0, 0, static_cast<off_t>(bytes)) != 0 ||
      fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return {};
  }
  return descriptor;
}

}  // namespace

MappedMemory::MappedMemory(int descriptor, std::size_t bytes, Pages pages) : bytes_(bytes) {
  const int flags = MAP_SHARED | (pages == Pages::now ? MAP_POPULATE : 0);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (data == MAP_FAILED) throw_errno(concat("rpc: mapping ", bytes, " bytes"));
  data_ = static_cast<std::byte*>(data);
}

MappedMemory::~MappedMemory() {
  munmap(data_, bytes_);
}

std::shared_ptr<MappedMemory> map_received(UniqueFd descriptor, std::size_t bytes) {
  struct stat status {};
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(descriptor.get(), &status) != 0 ||
      bytes == 0 || static_cast<std::uint64_t>(status.st_size) != bytes) {
    throw BadMessage(concat("rpc: what was sent is no sealed memory of ", bytes, " bytes"));
  }
  return std::make_shared<MappedMemory>(descriptor.get(), bytes, MappedMemory::Pages::when_touched);
}

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::shared_ptr<SegmentPool> SegmentPool::create(std::size_t max_idle_bytes,
                                                 std::function<void(std::uint64_t)> freed) {
  return std::shared_ptr<SegmentPool>(new SegmentPool(max_idle_bytes, std::move(freed)));
}

std::shared_ptr<Segment> SegmentPool::take(std::size_t bytes) {
  const std::size_t size = step_up(bytes);
  std::unique_ptr<Segment> segment;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = idle_.find(size); found != idle_.end()) {
      segment = std::move(found->second);
      idle_.erase(found);
      idle_bytes_ -= size;
    }
  }
  if (!segment) {
    segment = std::make_unique<Segment>();
    segment->descriptor = make_memfd(size);
    if (!segment->descriptor) return nullptr;
    try {
      // All of it is going to be written: one call instead of a fault for each page.
      segment->memory =
          std::make_unique<MappedMemory>(segment->descriptor.get(), size, MappedMemory::Pages::now);
    } catch (const SystemError&) {
      return nullptr;
    }
    const std::lock_guard lock(mutex_);
    segment->id = next_id_++;
  }
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Segment> handle(segment.release(), [pool = weak_from_this()](Segment* each) {
    std::unique_ptr<Segment> owned(each);
    if (const auto alive = pool.lock()) alive->give_back(std::move(owned));
  });
  used_[handle->data()] = handle;
  return handle;
}

void SegmentPool::give_back(std::unique_ptr<Segment> segment) {
  const std::uint64_t id = segment->id;
  {
    const std::lock_guard lock(mutex_);
    used_.erase(segment->data());
    if (!segment->retired && idle_.size() < kMaxIdle &&
        idle_bytes_ + segment->bytes() <= max_idle_bytes_) {
      idle_bytes_ += segment->bytes();
      idle_.emplace(segment->bytes(), std::move(segment));
      return;
    }
  }
  segment.reset();
  if (freed_) freed_(id);
}

std::optional<SegmentPool::Place> SegmentPool::find(const void* data, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(data);
  std::shared_ptr<Segment> segment;  // before the lock: letting go of it may need that
  const std::lock_guard lock(mutex_);
  auto found = used_.upper_bound(first);
  if (found == used_.begin()) return std::nullopt;
  --found;
  segment = found->second.lock();
  if (!segment) return std::nullopt;
  const auto offset = static_cast<std::size_t>(first - segment->data());
  if (offset >= segment->bytes() || bytes > segment->bytes() - offset) return std::nullopt;
  return Place{.segment = std::move(segment), .offset = offset};
}

void SegmentPool::retire(const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(mutex_);
  segment->retired = true;
}

std::size_t SegmentPool::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

std::size_t SegmentPool::used() const {
  const std::lock_guard lock(mutex_);
  return used_.size();
}

}  // namespace lockstep::rpc
