#pragma once

#include <vector>

#include "tests/kernels/on_cpu/fiber.h"

namespace lockstep::kernels::on_cpu {

/// Where the threads of a warp come together for what they only do at once.
class Meeting {
 public:
  explicit Meeting(int members) : brought_(static_cast<std::size_t>(members)) {}

  /// True for the last one, which acts for all and then calls dismiss(). For the others it returns
  /// after that. `what` each has brought is kept until then.
  bool arrive(const char* call, int member, void* what);
  void dismiss();
  /// A member that ends will never come again.
  void leave();

  /// What was brought by a member.
  template <class Brought>
  Brought& of(std::size_t member) const {
    return *static_cast<Brought*>(brought_[member]);
  }
  std::size_t members() const { return brought_.size(); }

 private:
  const char* call_ = "";
  std::vector<void*> brought_;
  std::vector<Fiber*> waiting_;
  int ended_ = 0;
};

}  // namespace lockstep::kernels::on_cpu
