#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

/// Where the parameters of a unit lie in its one buffer, and which part of the buffer is whose.
///
/// Parameters begin, and parts end, at multiples of kAlignment elements. So a part of a parameter
/// begins at a multiple of it, too, which means that an optimizer's vector loops treat every
/// element as they would in the whole parameter: same bits.
class FlatLayout {
 public:
  static constexpr std::int64_t kAlignment = 64;

  FlatLayout(const std::vector<std::int64_t>& sizes, int ranks);

  /// Elements of the buffer, with padding, and of each rank's part.
  std::int64_t length() const { return shard_length_ * ranks_; }
  std::int64_t shard_length() const { return shard_length_; }

  std::int64_t offset(std::size_t parameter) const { return offsets_.at(parameter); }
  std::int64_t size(std::size_t parameter) const { return sizes_.at(parameter); }
  std::size_t parameters() const { return sizes_.size(); }

  /// What a rank has of a parameter.
  struct Piece {
    std::size_t parameter = 0;
    std::int64_t begin = 0;  // in the parameter
    std::int64_t at = 0;     // in the rank's part
    std::int64_t count = 0;
  };
  /// Those that are not empty, in order.
  std::vector<Piece> pieces(int rank) const;

  /// Stretches of the buffer that belong to no parameter: [begin, end).
  struct Gap {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<Gap> gaps() const;

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> offsets_;
  int ranks_ = 1;
  std::int64_t shard_length_ = 0;
};

}  // namespace lockstep
