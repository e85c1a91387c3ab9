#include "lockstep/mesh.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "lockstep/error.h"
#include "lockstep/world.h"

namespace lockstep {

MeshShape::MeshShape(std::vector<MeshDimension> dimensions) : dimensions_(std::move(dimensions)) {
  if (dimensions_.empty()) throw InvalidArgument("Mesh: there is no dimension");
  std::int64_t ranks = 1;
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    const MeshDimension& each = dimensions_[i];
    if (each.name.empty()) throw InvalidArgument(concat("Mesh: dimension ", i, " has no name"));
    if (each.size < 1) {
      throw InvalidArgument(concat("Mesh: dimension '", each.name, "' has size ", each.size,
                                   "; it must be at least 1"));
    }
    for (std::size_t other = 0; other < i; ++other) {
      if (dimensions_[other].name == each.name) {
        throw InvalidArgument(concat("Mesh: two dimensions are called '", each.name, "'"));
      }
    }
    ranks *= each.size;
    if (ranks > std::numeric_limits<int>::max()) {
      throw InvalidArgument(concat("Mesh: ", text(), " is more ranks than there can be"));
    }
  }
}

int MeshShape::ranks() const {
  int product = 1;
  for (const MeshDimension& each : dimensions_) product *= each.size;
  return product;
}

std::string MeshShape::text() const {
  std::string text;
  for (const MeshDimension& each : dimensions_) {
    text += concat(text.empty() ? "" : " x ", each.name, " ", each.size);
  }
  return text;
}

int MeshShape::index(std::string_view name) const {
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name == name) return static_cast<int>(i);
  }
  throw InvalidArgument(concat("Mesh: there is no dimension '", name, "' in ", text()));
}

std::vector<int> MeshShape::coordinates_of(int rank) const {
  if (rank < 0 || rank >= ranks()) {
    throw InvalidArgument(concat("Mesh: rank ", rank, " is outside ", text()));
  }
  std::vector<int> coordinates(dimensions_.size());
  for (std::size_t i = dimensions_.size(); i-- > 0;) {
    coordinates[i] = rank % dimensions_[i].size;
    rank /= dimensions_[i].size;
  }
  return coordinates;
}

int MeshShape::rank_at(const std::vector<int>& coordinates) const {
  if (coordinates.size() != dimensions_.size()) {
    throw InvalidArgument(concat("Mesh: ", coordinates.size(), " coordinates for ", text()));
  }
  int rank = 0;
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= dimensions_[i].size) {
      throw InvalidArgument(concat("Mesh: coordinate ", coordinates[i], " of dimension '",
                                   dimensions_[i].name, "' is outside [0, ", dimensions_[i].size,
                                   ")"));
    }
    rank = rank * dimensions_[i].size + coordinates[i];
  }
  return rank;
}

std::vector<int> MeshShape::along(int dimension, int rank) const {
  std::vector<int> coordinates = coordinates_of(rank);
  std::vector<int> ranks;
  for (int i = 0; i < dimensions_.at(dimension).size; ++i) {
    coordinates[dimension] = i;
    ranks.push_back(rank_at(coordinates));
  }
  return ranks;
}

Mesh::Mesh(World& world, std::vector<MeshDimension> dimensions) : shape_(std::move(dimensions)) {
  if (shape_.ranks() != world.world_size()) {
    throw InvalidArgument(concat("Mesh: ", shape_.text(), " is ", shape_.ranks(),
                                 " ranks; the world has ", world.world_size()));
  }
  coordinates_ = shape_.coordinates_of(world.rank());
  for (int dimension = 0; dimension < static_cast<int>(coordinates_.size()); ++dimension) {
    if (shape_.dimensions()[dimension].size == world.world_size()) {
      groups_.push_back(world.group());
      continue;
    }
    // Groups are numbered as they are made, so every rank makes all of them in the same order.
    ProcessGroup own;
    for (int rank = 0; rank < world.world_size(); ++rank) {
      if (shape_.coordinates_of(rank)[dimension] != 0) continue;
      const ProcessGroup group = world.new_group({.ranks = shape_.along(dimension, rank)});
      if (group.is_member()) own = group;
    }
    groups_.push_back(own);
  }
}

int Mesh::size(std::string_view dimension) const {
  return shape_.dimensions()[shape_.index(dimension)].size;
}

int Mesh::coordinate(std::string_view dimension) const {
  return coordinates_[shape_.index(dimension)];
}

const ProcessGroup& Mesh::group(std::string_view dimension) const {
  return groups_[shape_.index(dimension)];
}

}  // namespace lockstep
