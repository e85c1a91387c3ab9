#include "comm/shm_message.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "comm/shm_tensors.h"
#include "lockstep/error.h"

namespace lockstep::shm_message {
namespace {

/// One side of a message. Whoever waits for it moves its bytes.
class MailWork : public c10d::Work {
 public:
  MailWork(std::shared_ptr<GroupTeam> team, ShmMail::MessagePtr message, const Envelope& envelope,
           c10d::OpType type)
      : Work(team->rank(), type),
        team_(std::move(team)),
        message_(std::move(message)),
        timeout_(envelope.timeout) {}

  bool isCompleted() override { return mail().has_ended(message_); }
  bool isSuccess() const override {
    return mail().has_ended(message_) && !mail().has_failed(message_);
  }
  int sourceRank() const override { return team_->rank_at(mail().source_of(message_)); }

  bool wait(std::chrono::milliseconds timeout) override {
    mail().wait(message_, timeout == kNoTimeout ? timeout_ : timeout);
    return true;
  }
  void synchronize() override {}
  void abort() override { team_->poison(); }

 private:
  ShmMail& mail() const { return *team_->mail(); }

  std::shared_ptr<GroupTeam> team_;
  ShmMail::MessagePtr message_;
  std::chrono::milliseconds timeout_;
};

at::Tensor the_tensor(const char* operation, const Tensors& tensors) {
  if (tensors.size() != 1) {
    throw InvalidArgument(concat(operation, ": one tensor at a time, not ", tensors.size()));
  }
  shm_operation::check_here(operation, tensors[0]);
  return tensors[0];
}

ShmMail::Content content_of(const at::Tensor& dense, int tag) {
  return {.data = const_cast<void*>(dense.const_data_ptr()),
          .bytes = dense.nbytes(),
          .tag = static_cast<std::uint32_t>(tag),
          .owner = std::make_shared<at::Tensor>(dense)};
}

int place_of(const GroupTeam& team, const Envelope& envelope) {
  return envelope.peer == ShmMail::kAnyone ? envelope.peer : team.place_of(envelope.peer);
}

}  // namespace

WorkPtr send(const std::shared_ptr<GroupTeam>& team, const Tensors& tensors,
             const Envelope& envelope) {
  const at::Tensor dense = shm_operation::dense(the_tensor("send", tensors));
  auto message = team->mail()->send(place_of(*team, envelope), content_of(dense, envelope.tag));
  return c10::make_intrusive<MailWork>(team, std::move(message), envelope, c10d::OpType::SEND);
}

WorkPtr receive(const std::shared_ptr<GroupTeam>& team, const Tensors& tensors,
                const Envelope& envelope) {
  const at::Tensor tensor = the_tensor("recv", tensors);
  const at::Tensor dense = shm_operation::dense(tensor);
  ShmMail::Content content = content_of(dense, envelope.tag);
  if (!dense.is_same(tensor)) {
    content.arrived = [tensor, dense] {
      const at::NoGradGuard no_grad;
      tensor.copy_(dense);
    };
  }
  auto message = team->mail()->receive(place_of(*team, envelope), std::move(content));
  return c10::make_intrusive<MailWork>(team, std::move(message), envelope, c10d::OpType::RECV);
}

}  // namespace lockstep::shm_message
