#include <utility>

#include "lockstep/rpc.h"
#include "rpc/agent_core.h"

namespace lockstep::rpc {

Agent::Agent(std::shared_ptr<Directory> directory, AgentOptions options)
    : core_(std::make_unique<detail::AgentCore>(std::move(directory), options)) {
  if (options.setup) options.setup(*this);
  core_->publish();
}

Agent::~Agent() = default;

const std::string& Agent::name() const {
  return core_->name();
}

void Agent::serve_function(const std::string& name, detail::ServedFunction function) {
  core_->serve(name, std::move(function));
}

void Agent::add_class(const std::string& name, detail::ServedClass served) {
  core_->serve_class(name, std::move(served));
}

std::shared_ptr<detail::CallState> Agent::start(const Call& call, std::string signature,
                                                Payload payload) {
  return core_->start(call, std::move(signature), std::move(payload));
}

std::shared_ptr<detail::RemoteObject> Agent::make_object(const Call& call, std::string signature,
                                                         Payload payload) {
  return core_->make_object(call, std::move(signature), std::move(payload));
}

Blob Agent::shared_memory(std::size_t bytes) {
  return core_->shared_memory(bytes);
}

void Agent::shutdown(std::chrono::milliseconds timeout) {
  core_->shutdown(timeout);
}

void Agent::close() {
  core_->close();
}

}  // namespace lockstep::rpc
