// Lists of machines, and what a launcher on another machine is told: anything is read or refused,
// and what was read can be written and read again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cluster/brief.h"
#include "cluster/hosts.h"
#include "lockstep/error.h"

namespace {

using namespace lockstep;

void check(bool holds) {
  if (!holds) __builtin_trap();
}

template <typename Call>
void refuse_or(Call call) {
  try {
    call();
  } catch (const InvalidArgument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      refuse_or([&] {
        const std::vector<Host> hosts = hosts_of(text);
        check(!hosts.empty());
        for (const Host& host : hosts) check(!host.name.empty() && host.slots.value_or(1) > 0);
      });
      break;
    case 1:
      refuse_or([&] { check(!hosts_of_file(text, "f").empty()); });
      refuse_or([&] { check(!hosts_of_nodefile(text, "f").empty()); });
      break;
    case 2:
      refuse_or([&] {
        const std::vector<Host> hosts{{"n1", 4}, {"n2", 2, {0, 3}}, {"n3"}};
        check(!chosen_hosts(hosts, std::string(text), std::nullopt).empty());
      });
      refuse_or([&] {
        const std::vector<Host> hosts{{"n1", 4}, {"n2", 2, {0, 3}}, {"n3"}};
        check(!chosen_hosts(hosts, std::nullopt, std::string(text)).empty());
      });
      break;
    default:
      refuse_or([&] {
        const Brief brief = decode_brief(text);
        check(decode_brief(encode(brief)) == brief);
      });
  }
  return 0;
}
