#pragma once

#include <cstdint>

namespace lockstep::zip {

// Records of the zip format: their first four bytes, and their lengths without names and the like.
inline constexpr std::uint32_t kLocalSignature = 0x04034b50;
inline constexpr std::uint32_t kEntrySignature = 0x02014b50;
inline constexpr std::uint32_t kEndSignature = 0x06054b50;
inline constexpr std::uint32_t kEnd64Signature = 0x06064b50;
inline constexpr std::uint32_t kLocatorSignature = 0x07064b50;
inline constexpr std::uint64_t kLocalBytes = 30;
inline constexpr std::uint64_t kEntryBytes = 46;
inline constexpr std::uint64_t kEndBytes = 22;
inline constexpr std::uint64_t kEnd64Bytes = 56;
inline constexpr std::uint64_t kLocatorBytes = 20;

inline constexpr std::uint16_t kZip64Field = 1;         // kind of the extra field
inline constexpr std::uint16_t kPaddingField = 0x4246;  // "FB", as PyTorch pads
inline constexpr std::uint32_t kInZip64 = 0xffffffff;   // "see the extra field"
inline constexpr std::uint16_t kPlainVersion = 20;
inline constexpr std::uint16_t kZip64Version = 45;
inline constexpr std::uint16_t kUtf8Flag = 1 << 11;
inline constexpr std::uint16_t kFirstDay =
    0x21;  // 1980-01-01: files do not depend on when they are made
inline constexpr std::uint64_t kAlignment = 64;

}  // namespace lockstep::zip
