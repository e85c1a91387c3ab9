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

  /// `ranks` is a multiple of `replicas`, which is how many ranks hold the same part.
  FlatLayout(const std::vector<std::int64_t>& sizes, int ranks, int replicas = 1);

  /// Elements of the buffer, with padding, and of each part.
  std::int64_t length() const { return share_length_ * ranks_; }
  std::int64_t shard_length() const { return share_length_ * replicas_; }
  /// A part is as many shares as ranks hold it: what each of them adds up, and saves.
  std::int64_t share_length() const { return share_length_; }

  std::int64_t offset(std::size_t parameter) const { return offsets_.at(parameter); }
  std::int64_t size(std::size_t parameter) const { return sizes_.at(parameter); }
  std::size_t parameters() const { return sizes_.size(); }

  /// What a part has of a parameter.
  struct Piece {
    std::size_t parameter = 0;
    std::int64_t begin = 0;  // in the parameter
    std::int64_t at = 0;     // in the part
    std::int64_t count = 0;
  };
  /// Those that are not empty, in order.
  std::vector<Piece> pieces(int part) const;

  /// Some elements, in the buffer and in the order in which all ranks reduce, where the r-th share
  /// is the one that rank r adds up. Those of the holders of a part, one after the other, are that
  /// part.
  struct Stretch {
    std::int64_t begin = 0;  // in the buffer
    std::int64_t at = 0;     // in the order of the reduction
    std::int64_t count = 0;
  };
  /// The elements [begin, end) of the buffer.
  std::vector<Stretch> in_reduction(std::int64_t begin, std::int64_t end) const;

  /// Stretches of the buffer that belong to no parameter: [begin, end).
  struct Gap {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<Gap> gaps() const;

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> offsets_;
  int ranks_ = 1, replicas_ = 1;
  std::int64_t share_length_ = 0;
};

}  // namespace lockstep
