#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/process_group.h"

namespace lockstep {

class World;

struct MeshDimension {
  std::string name;  // "data", "pipeline", ...
  int size = 1;
};

/// Numbers arranged in a grid: rank = coordinates read as digits, the last dimension fastest, as in
/// Python's init_device_mesh.
class MeshShape {
 public:
  /// Throws InvalidArgument unless names are different and not empty, and sizes are at least 1.
  explicit MeshShape(std::vector<MeshDimension> dimensions);

  const std::vector<MeshDimension>& dimensions() const { return dimensions_; }
  int ranks() const;
  /// "pipeline 2 x data 3".
  std::string text() const;

  /// Which dimension has this name. Throws InvalidArgument with the names that there are.
  int index(std::string_view name) const;
  std::vector<int> coordinates_of(int rank) const;
  int rank_at(const std::vector<int>& coordinates) const;
  /// The ranks that differ from `rank` in this dimension alone, itself among them, ascending.
  std::vector<int> along(int dimension, int rank) const;

 private:
  std::vector<MeshDimension> dimensions_;
};

/// The ranks of a world as a grid with a group along each dimension:
///
///     lockstep::Mesh mesh(world, {{"pipeline", 2}, {"data", 2}});
///     mesh.group("data")       // the ranks that compute the same stage on other samples
///     mesh.coordinate("data")  // this rank's number there, and in that group
///
/// Whatever takes a ProcessGroup takes one of these: DistributedDataParallel, ShardedDataParallel,
/// Pipeline.
///
/// Thread rule: that of its groups.
class Mesh {
 public:
  /// Every rank of the world constructs it at the same point, with the same dimensions. Throws
  /// InvalidArgument, on every rank, unless the sizes multiply to the world's size.
  Mesh(World& world, std::vector<MeshDimension> dimensions);

  const MeshShape& shape() const { return shape_; }
  int size(std::string_view dimension) const;
  int coordinate(std::string_view dimension) const;
  const ProcessGroup& group(std::string_view dimension) const;

 private:
  MeshShape shape_;
  std::vector<int> coordinates_;
  std::vector<ProcessGroup> groups_;
};

}  // namespace lockstep
