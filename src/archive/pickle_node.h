#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "archive/pickle.h"

namespace lockstep::unpickling {

struct Node;

/// A name of Python that a pickle may use: "torch.FloatStorage".
struct Global {
  std::string name;
};
struct Storage {
  std::optional<ElementType> type;  // none: counted in bytes
  std::string key;
  std::int64_t count = 0;
};
struct List {
  std::vector<Node*> items;
};
struct Tuple {
  std::vector<Node*> items;
};
struct Dict {
  std::vector<std::pair<Node*, Node*>> items;
  bool ordered = false;
};

/// What is on the machine's stack and in its memory. Containers are filled after they were
/// memorized, and may contain themselves, so they are referred to by address; the machine owns all
/// nodes.
struct Node {
  std::variant<NoneValue, bool, std::int64_t, std::uint64_t, double, std::string, BytesValue, List,
               Tuple, Dict, Global, Storage, TensorValue>
      data;
};

[[noreturn]] void refuse(const std::string& what);

/// Calls of the functions that are understood.
class Calls {
 public:
  Calls(std::deque<Node>& nodes, const UnpickleOptions& options)
      : nodes_(nodes), options_(options), copies_left_(options.copy_limit) {}

  /// The name as Python 3 has it. Refuses all but those that are understood.
  static std::string check_global(const std::string& module, const std::string& name);

  Node* reduce(const Node& function, const Node& arguments);
  Node* persistent(const Node& id);

 private:
  Node* add(Node node);
  TensorValue rebuild_tensor(const std::vector<Node*>& arguments, std::optional<ElementType> type);
  TensorValue compact(const TensorValue& like, std::span<const std::byte> storage,
                      std::int64_t offset, const std::vector<std::int64_t>& strides);

  std::deque<Node>& nodes_;
  const UnpickleOptions& options_;
  std::uint64_t copies_left_;
};

}  // namespace lockstep::unpickling
