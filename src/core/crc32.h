#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

/// The checksum of zip files and of W&B's (CRC-32 of IEEE 802.3). `before`: of the bytes that came
/// first.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

/// The checksum of TensorBoard's files: CRC-32C, of Castagnoli's polynomial.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep
