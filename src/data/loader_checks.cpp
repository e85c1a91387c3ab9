#include "data/loader_checks.h"

#include <vector>

#include <c10/util/Exception.h>

namespace lockstep {

void check_options(const LoaderOptions& options, bool is_stream) {
  const auto refuse = [](const auto&... text) {
    throw InvalidArgument(concat("Loader: ", text...));
  };
  if (options.batch_size < 1) refuse("batch_size is ", options.batch_size, "; at least 1");
  if (options.num_workers < 0) refuse("num_workers is ", options.num_workers, "; 0 or more");
  if (options.prefetch_factor < 1) {
    refuse("prefetch_factor is ", options.prefetch_factor, "; at least 1");
  }
  if (options.timeout.count() < 0) {
    refuse("timeout is ", options.timeout.count(), " ms; 0 (none) or more");
  }
  if (options.timeout.count() > 0 && options.num_workers == 0) {
    refuse("a timeout needs num_workers above 0: the caller cannot stop waiting for itself");
  }
  if (options.worker_init && options.num_workers == 0) {
    refuse("worker_init needs num_workers above 0");
  }
  const bool ordered = options.shuffle || options.sampler || options.batch_sampler;
  if (is_stream && ordered) {
    refuse("a stream has its own order; shuffle, sampler and batch_sampler need a dataset");
  }
  if (options.sampler && options.shuffle) {
    refuse("sampler and shuffle both give the order; leave one out");
  }
  if (options.batch_sampler &&
      (options.sampler || options.shuffle || options.drop_last || options.batch_size != 1)) {
    refuse("batch_sampler decides alone: leave sampler, shuffle, drop_last and batch_size out");
  }
  if (options.dealing == Dealing::kExact && options.drop_last) {
    refuse("Dealing::kExact delivers every sample; leave drop_last out");
  }
}

void check_deal(const Deal& deal) {
  if (deal.slots < 1) throw InvalidArgument(concat("Deal: slots is ", deal.slots, "; at least 1"));
  if (deal.accumulate < 1) {
    throw InvalidArgument(concat("Deal: accumulate is ", deal.accumulate, "; at least 1"));
  }
  if (deal.mine.empty()) throw InvalidArgument("Deal: mine is empty; a process has a slot or more");
  std::vector<bool> seen(deal.slots, false);
  for (const int slot : deal.mine) {
    if (slot < 0 || slot >= deal.slots) {
      throw InvalidArgument(concat("Deal: slot ", slot, " is not one of ", deal.slots, " slots"));
    }
    if (seen[slot]) throw InvalidArgument(concat("Deal: slot ", slot, " appears twice in mine"));
    seen[slot] = true;
  }
}

namespace detail {

void rethrow_for_sample(std::int64_t index) {
  const std::exception_ptr cause = std::current_exception();
  std::string what = "an exception of unknown type";
  try {
    throw;
  } catch (const c10::Error& error) {
    what = error.what_without_backtrace();
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  throw SampleError(concat("sample ", index, ": ", what), index, cause);
}

}  // namespace detail

}  // namespace lockstep
