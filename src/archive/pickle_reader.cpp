#include <bit>
#include <cstring>
#include <limits>
#include <map>

#include "archive/pickle.h"
#include "archive/pickle_node.h"
#include "archive/pickle_opcodes.h"
#include "lockstep/error.h"

namespace lockstep {
namespace unpickling {

void refuse(const std::string& what) {
  throw InvalidArgument(concat("not a pickle that can be read: ", what));
}

namespace {

constexpr std::size_t kLongest = std::size_t{256} << 20;  // every byte can become a node
constexpr int kDeepest = 200;

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const UnpickleOptions& options)
      : bytes_(bytes), calls_(nodes_, options) {
    if (bytes.size() > kLongest) refuse(concat(bytes.size(), " bytes"));
    // Strings and containers can be referred to many times. Without a limit a short pickle would
    // become a tree that no machine can hold.
    budget_ = 64 * bytes.size() + (64 << 10);
  }

  Value run() {
    for (;;) {
      const char code = static_cast<char>(take(1)[0]);
      if (code == opcode::kStop) break;
      step(code);
    }
    return value_of(*pop(), 0);
  }

 private:
  std::span<const std::byte> take(std::size_t count) {
    if (bytes_.size() - at_ < count) refuse("it is cut short");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  std::uint64_t number(int count) {
    std::uint64_t value = 0;
    const auto bytes = take(static_cast<std::size_t>(count));
    for (int i = count; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
    return value;
  }
  std::string text(std::size_t count) {
    const auto bytes = take(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string line() {
    const auto* begin = reinterpret_cast<const char*>(bytes_.data()) + at_;
    const auto* end = static_cast<const char*>(std::memchr(begin, '\n', bytes_.size() - at_));
    if (end == nullptr) refuse("it is cut short");
    at_ += static_cast<std::size_t>(end - begin) + 1;
    return {begin, end};
  }

  template <typename Data>
  void push(Data&& data) {
    stack_.push_back(&nodes_.emplace_back(Node{std::forward<Data>(data)}));
  }
  Node* pop() {
    const std::size_t bottom = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= bottom) refuse("it takes more from its stack than there is");
    Node* top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Node* top() {
    Node* node = pop();
    stack_.push_back(node);
    return node;
  }
  std::vector<Node*> pop_mark() {
    if (marks_.empty()) refuse("it ends what it has not begun");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Node*> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  template <typename Data>
  Data& top_as(const char* what) {
    if (auto* data = std::get_if<Data>(&top()->data)) return *data;
    refuse(concat("it adds to something that is not a ", what));
  }

  void step(char code) {
    switch (code) {
      case opcode::kProto:
        return check_protocol();
      case opcode::kMark:
        return marks_.push_back(stack_.size());
      case opcode::kNone:
        return push(NoneValue{});
      case opcode::kNewTrue:
        return push(true);
      case opcode::kNewFalse:
        return push(false);
      case opcode::kBinInt:
        return push(std::int64_t{static_cast<std::int32_t>(number(4))});
      case opcode::kBinInt1:
        return push(static_cast<std::int64_t>(number(1)));
      case opcode::kBinInt2:
        return push(static_cast<std::int64_t>(number(2)));
      case opcode::kLong1:
        return long_integer();
      case opcode::kBinFloat:
        return floating();
      case opcode::kBinUnicode:
        return push(text(number(4)));
      case opcode::kEmptyDict:
        return push(Dict{});
      case opcode::kEmptyList:
        return push(List{});
      case opcode::kEmptyTuple:
        return push(Tuple{});
      case opcode::kTuple:
        return push(Tuple{pop_mark()});
      case opcode::kTuple1:
        return tuple(1);
      case opcode::kTuple2:
        return tuple(2);
      case opcode::kTuple3:
        return tuple(3);
      case opcode::kBinPut:
        return memorize(number(1));
      case opcode::kLongBinPut:
        return memorize(number(4));
      case opcode::kBinGet:
        return recall(number(1));
      case opcode::kLongBinGet:
        return recall(number(4));
      default:
        return step_on_containers(code);
    }
  }

  void step_on_containers(char code) {
    switch (code) {
      case opcode::kAppend:
        return append({pop()});
      case opcode::kAppends:
        return append(pop_mark());
      case opcode::kSetItem: {
        Node* value = pop();
        Node* key = pop();
        return set_items({key, value});
      }
      case opcode::kSetItems:
        return set_items(pop_mark());
      case opcode::kGlobal: {
        const std::string module = line();
        return push(Global{Calls::check_global(module, line())});
      }
      case opcode::kReduce: {
        const Node* arguments = pop();
        const Node* function = pop();
        return stack_.push_back(calls_.reduce(*function, *arguments));
      }
      case opcode::kBinPersId:
        return stack_.push_back(calls_.persistent(*pop()));
      case opcode::kBuild:
        // state_dict() carries versions of modules in an attribute, which no loader here needs.
        pop();
        if (!std::holds_alternative<Dict>(top()->data)) refuse("it sets attributes of an object");
        return;
      default:
        refuse(concat("operation ", static_cast<int>(static_cast<unsigned char>(code)), " at byte ",
                      at_ - 1, " is not one that state_dicts use"));
    }
  }

  void check_protocol() {
    const std::uint64_t protocol = number(1);
    if (protocol != 2) refuse(concat("protocol ", protocol, "; torch.save uses 2"));
  }
  void long_integer() {
    const auto bytes = take(number(1));
    const bool negative = !bytes.empty() && (bytes.back() & std::byte{0x80}) != std::byte{0};
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      const auto byte = std::to_integer<std::uint64_t>(bytes[i]);
      if (i >= 8 && byte != (negative ? 0xff : 0)) refuse("an integer of more than 64 bits");
      value = value << 8 | byte;
    }
    const bool is_positive_of_64_bits = !negative && value >> 63 != 0;
    if (negative && value >> 63 == 0) refuse("an integer of more than 64 bits");
    if (is_positive_of_64_bits) return push(value);
    push(static_cast<std::int64_t>(value));
  }
  void floating() {
    std::uint64_t bits = 0;
    for (const std::byte byte : take(8)) bits = bits << 8 | std::to_integer<std::uint64_t>(byte);
    push(std::bit_cast<double>(bits));
  }
  void tuple(int count) {
    Tuple tuple;
    tuple.items.resize(static_cast<std::size_t>(count));
    for (int i = count; i-- > 0;) tuple.items[static_cast<std::size_t>(i)] = pop();
    push(std::move(tuple));
  }
  void memorize(std::uint64_t place) { memory_[place] = top(); }
  void recall(std::uint64_t place) {
    const auto found = memory_.find(place);
    if (found == memory_.end()) refuse("it recalls what it has not memorized");
    stack_.push_back(found->second);
  }
  void append(const std::vector<Node*>& items) {
    auto& list = top_as<List>("list").items;
    list.insert(list.end(), items.begin(), items.end());
  }
  void set_items(const std::vector<Node*>& items) {
    if (items.size() % 2 != 0) refuse("a key without a value");
    auto& dict = top_as<Dict>("dict").items;
    for (std::size_t i = 0; i < items.size(); i += 2) dict.emplace_back(items[i], items[i + 1]);
  }

  void spend(std::uint64_t cost) {
    if (cost > budget_) refuse("it is larger than its length allows");
    budget_ -= cost;
  }

  Value value_of(const Node& node, int depth) {
    if (depth > kDeepest) refuse("it is nested too deeply, or contains itself");
    spend(1);
    return std::visit([&](const auto& data) { return convert(data, depth + 1); }, node.data);
  }
  template <typename Plain>
  Value convert(const Plain& plain, int) {
    return {plain};
  }
  Value convert(const std::string& text, int) {
    spend(text.size());
    return {text};
  }
  Value convert(const BytesValue& bytes, int) {
    spend(bytes.bytes.size());
    return {bytes};
  }
  Value convert(const TensorValue& tensor, int) {
    spend(tensor.shape.size());
    return {tensor};
  }
  Value convert(const Global& global, int) {
    // A type of elements is data; the other names only occur inside of calls.
    if (global.name.starts_with("torch.") && element_type_of_torch(global.name.substr(6))) {
      return {global.name};
    }
    refuse(concat("it holds '", global.name, "' itself"));
  }
  Value convert(const Storage&, int) { refuse("it holds a storage without a tensor"); }
  Value convert(const List& list, int depth) {
    ListValue result;
    for (const Node* item : list.items) result.items.push_back(value_of(*item, depth));
    return {std::move(result)};
  }
  Value convert(const Tuple& tuple, int depth) {
    TupleValue result;
    for (const Node* item : tuple.items) result.items.push_back(value_of(*item, depth));
    return {std::move(result)};
  }
  Value convert(const Dict& dict, int depth) {
    DictValue result{.items = {}, .ordered = dict.ordered};
    std::map<std::variant<std::string, std::int64_t>, std::size_t> places;
    for (const auto& [key, value] : dict.items) {
      std::variant<std::string, std::int64_t> id;
      if (const auto* text = std::get_if<std::string>(&key->data)) {
        id = *text;
      } else if (const auto* integer = std::get_if<std::int64_t>(&key->data)) {
        id = *integer;
      } else {
        refuse("the key of a dict is neither a string nor an integer");
      }
      Value converted = value_of(*value, depth);
      const auto [known, is_new] = places.emplace(std::move(id), result.items.size());
      if (is_new) {
        result.items.push_back({value_of(*key, depth), std::move(converted)});
      } else {
        result.items[known->second].value = std::move(converted);  // as in Python
      }
    }
    return {std::move(result)};
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::deque<Node> nodes_;
  std::vector<Node*> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, Node*> memory_;
  std::uint64_t budget_ = 0;
  Calls calls_;
};

}  // namespace
}  // namespace unpickling

Value unpickle(std::span<const std::byte> bytes, const UnpickleOptions& options) {
  return unpickling::Machine(bytes, options).run();
}

}  // namespace lockstep
