#include "snapshot/staging.h"

#include <sys/mman.h>
#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
constexpr std::int64_t kPieceBytes = 4 << 20;
// What is left to the others when the last of it is taken.
constexpr std::uint64_t kReserveBytes = 256 << 20;

bool needs_pinned(const SnapshotPlan& plan) {
  for (const auto& part : plan.parts) {
    for (const at::Tensor& tensor : part.tensors) {
      if (tensor.is_cuda()) return true;
    }
  }
  return false;
}

// The number after `key` in a file of lines "key number ...".
std::uint64_t number_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t value = 0;
    if (word == key && file >> value) return value;
  }
  return 0;
}

// "0::/system.slice/job.scope" -> "/sys/fs/cgroup/system.slice/job.scope"
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3);
  }
  return "";
}

std::uint64_t left_in_control_group() {
  const std::string group = control_group();
  if (group.empty()) return kUnlimited;
  std::string text;
  std::ifstream(group + "/memory.max") >> text;
  const auto limit = parse_integer<std::uint64_t>(text);
  if (!limit) return kUnlimited;  // "max", or no such file
  std::uint64_t used = 0;
  std::ifstream(group + "/memory.current") >> used;
  // Pages of files that nobody needs are given back when others ask.
  const std::uint64_t reclaimable = number_in(group + "/memory.stat", "inactive_file");
  used -= std::min(used, reclaimable);
  return *limit > used ? *limit - used : 0;
}

struct Piece {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

void append_pieces(std::vector<Piece>& pieces, std::byte* to, const at::Tensor& tensor) {
  const auto* from = static_cast<const std::byte*>(tensor.const_data_ptr());
  for (std::int64_t left = static_cast<std::int64_t>(tensor.nbytes()); left > 0;) {
    const std::int64_t bytes = std::min(left, kPieceBytes);
    pieces.push_back({to, from, static_cast<std::size_t>(bytes)});
    to += bytes;
    from += bytes;
    left -= bytes;
  }
}

}  // namespace

std::uint64_t available_memory() {
  const std::uint64_t kilobytes = number_in("/proc/meminfo", "MemAvailable:");
  return std::min(kilobytes == 0 ? kUnlimited : kilobytes * 1024, left_in_control_group());
}

Staging::~Staging() {
  release();
}

void Staging::release() {
  if (data_ != nullptr && !is_pinned_) ::munmap(data_, bytes_);
  pinned_.reset();
  data_ = nullptr;
  bytes_ = 0;
}

bool Staging::has_room_for(const SnapshotPlan& plan) const {
  if (plan.staging_bytes <= bytes_ && (is_pinned_ || !needs_pinned(plan))) return true;
  const std::uint64_t available = available_memory();
  return available == kUnlimited || plan.staging_bytes + kReserveBytes <= available + bytes_;
}

void Staging::reserve(const SnapshotPlan& plan, bool touch) {
  const bool pinned = needs_pinned(plan);
  if (plan.staging_bytes <= bytes_ && (is_pinned_ || !pinned)) return;
  release();
  if (plan.staging_bytes == 0) return;
  is_pinned_ = pinned;
  if (pinned) {
    pinned_ = at::empty({static_cast<std::int64_t>(plan.staging_bytes)},
                        at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    data_ = static_cast<std::byte*>(pinned_.mutable_data_ptr());
  } else {
    void* memory = ::mmap(nullptr, plan.staging_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw_errno(concat("cannot get ", plan.staging_bytes, " bytes of memory"));
    }
    data_ = static_cast<std::byte*>(memory);
    ::madvise(data_, plan.staging_bytes, MADV_HUGEPAGE);
    if (touch) ::madvise(data_, plan.staging_bytes, MADV_POPULATE_WRITE);
  }
  bytes_ = plan.staging_bytes;
}

void Staging::copy(const SnapshotPlan& plan) {
  std::vector<Piece> pieces;
  for (const SnapshotPlan::Part& part : plan.parts) {
    for (std::size_t i = 0; i < part.tensors.size(); ++i) {
      const at::Tensor& tensor = part.tensors[i];
      std::byte* to = data_ + part.staging_offset + part.layout.offsets[i];
      if (tensor.numel() == 0) continue;
      if (tensor.is_cpu() && tensor.is_contiguous()) {
        append_pieces(pieces, to, tensor);
        continue;
      }
      const at::Tensor target =
          at::from_blob(to, tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()));
      target.copy_(tensor, /*non_blocking=*/!tensor.is_cpu());
    }
  }
  at::parallel_for(0, static_cast<std::int64_t>(pieces.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
                     }
                   });
  wait_for_devices(plan);
}

void wait_for_devices(const SnapshotPlan& plan) {
  std::unordered_set<c10::Device> devices;
  for (const SnapshotPlan::Part& part : plan.parts) {
    for (const at::Tensor& tensor : part.tensors) {
      if (!tensor.is_cpu()) devices.insert(tensor.device());
    }
  }
  for (const c10::Device& device : devices) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  }
}

}  // namespace lockstep
