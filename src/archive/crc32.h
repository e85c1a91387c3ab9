#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// The checksum of zip files (CRC-32 of IEEE 802.3). `before`: of the bytes that came first.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace lockstep
