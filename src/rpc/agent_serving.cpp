#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>

#include "rpc/agent_core.h"

/// How an agent serves what others call.
namespace lockstep::rpc::detail {
namespace {

// Of the exception that is being handled.
std::string type_of_exception() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (!type) return "an exception";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), std::free);
  return status == 0 && name ? name.get() : type->name();
}

Failure current_failure() {
  Failure failure{
      .kind = FailureKind::remote_exception, .detail = type_of_exception(), .message = {}};
  try {
    throw;
  } catch (const std::exception& error) {
    failure.message = error.what();
    // libtorch goes on with a stack trace.
    if (failure.detail.starts_with("c10::")) failure.message = first_line(failure.message);
  } catch (...) {
    failure.message = "it is no std::exception";
  }
  return failure;
}

std::size_t size_of(const Payload& payload) {
  std::size_t bytes = payload.bytes.size();
  for (const Blob& blob : payload.blobs) bytes += blob.bytes;
  return bytes;
}

}  // namespace

void AgentCore::serve(const std::string& name, ServedFunction function) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    throw InvalidArgument(concat("rpc: a function's name is \"", name.substr(0, 40),
                                 "\"; it must have 1 to ", kMaxNameBytes, " bytes"));
  }
  const std::lock_guard lock(mutex_);
  functions_[name] = std::make_shared<const ServedFunction>(std::move(function));
}

void AgentCore::serve_class(const std::string& name, ServedClass served) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    throw InvalidArgument(concat("rpc: a class's name is \"", name.substr(0, 40),
                                 "\"; it must have 1 to ", kMaxNameBytes, " bytes"));
  }
  if (!served.make) {
    throw InvalidArgument(concat("rpc: class \"", name,
                                 "\" has no constructor without arguments; "
                                 "name one with constructor<...>()"));
  }
  const std::lock_guard lock(mutex_);
  classes_[name] = std::make_shared<const ServedClass>(std::move(served));
}

void AgentCore::refuse(const Serving& serving, FailureKind kind, std::string detail,
                       std::string message) {
  serving.connection->answer(
      serving.message.head.id,
      Failure{.kind = kind, .detail = std::move(detail), .message = std::move(message)});
}

// On the loop's thread: finds out what is called, and hands it to a thread that runs it.
void AgentCore::on_call(const std::shared_ptr<Connection>& connection, Received message) {
  const auto patience = std::chrono::milliseconds(message.head.timeout_ms);
  Serving serving{.connection = connection,
                  .message = std::move(message),
                  .deadline = std::chrono::steady_clock::now() + patience};
  const MessageHead& head = serving.message.head;
  if (!connection->begin_call(options_.max_calls)) {
    throw BadMessage(concat("rpc: more than ", options_.max_calls, " calls at a time"));
  }
  if (closing_) return refuse(serving, FailureKind::shut_down, {}, "it was shut down");
  if (head.object != 0) return serve_object_call(std::move(serving));

  std::shared_ptr<const ServedFunction> function;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = functions_.find(head.function); found != functions_.end()) {
      function = found->second;
    }
  }
  if (!function) {
    return refuse(serving, FailureKind::no_such_function, {},
                  concat("'", options_.name, "' serves no such function"));
  }
  if (function->signature != head.signature) {
    return refuse(serving, FailureKind::wrong_types, function->signature, {});
  }
  run(nullptr, std::move(serving), [function](const Caller& caller, Reader& in, Writer& out) {
    function->run(caller, in, out);
  });
}

void AgentCore::serve_object_call(Serving serving) {
  const MessageHead& head = serving.message.head;
  std::shared_ptr<const ServedClass> served;
  std::shared_ptr<Object> object;
  {
    const std::lock_guard lock(mutex_);
    if (head.object == kNewObject) {
      if (const auto found = classes_.find(head.function); found != classes_.end()) {
        served = found->second;
      }
    } else if (const auto found = objects_.find(head.object);
               found != objects_.end() && found->second->holder == serving.connection->number()) {
      object = found->second;
    }
  }
  if (head.object == kNewObject) {
    if (!served) {
      return refuse(serving, FailureKind::no_such_function, {},
                    concat("'", options_.name, "' serves no such class"));
    }
    if (served->signature != head.signature) {
      return refuse(serving, FailureKind::wrong_types, served->signature, {});
    }
    const std::shared_ptr<Connection> connection = serving.connection;
    const Time deadline = serving.deadline;
    return run(nullptr, std::move(serving),
               [this, connection, served, deadline](const Caller& caller, Reader& in, Writer& out) {
                 auto made = std::make_shared<Object>();
                 made->value = served->make(caller, in);
                 made->served = served;
                 if (served->one_at_a_time) made->strand = std::make_shared<HandlerPool::Strand>();
                 made->holder = connection->number();
                 const std::lock_guard lock(mutex_);
                 const std::uint64_t number = next_object_++;
                 // Nobody would drop what was made for a connection that has ended, or too late.
                 const bool late = std::chrono::steady_clock::now() >= deadline;
                 if (!late && !connection->closed()) objects_.emplace(number, std::move(made));
                 out.number(number);
               });
  }
  if (!object) return refuse(serving, FailureKind::no_such_object, {}, "the object is gone");
  const auto method = object->served->methods.find(head.function);
  if (method == object->served->methods.end()) {
    return refuse(serving, FailureKind::no_such_function, {}, "its class has no such method");
  }
  if (method->second.signature != head.signature) {
    return refuse(serving, FailureKind::wrong_types, method->second.signature, {});
  }
  run(object->strand, std::move(serving),
      [object, body = &method->second.run](const Caller& caller, Reader& in, Writer& out) {
        (*body)(object->value.get(), caller, in, out);
      });
}

void AgentCore::run(std::shared_ptr<HandlerPool::Strand> strand, Serving serving,
                    std::function<void(const Caller&, Reader&, Writer&)> body) {
  auto kept = std::make_shared<Serving>(std::move(serving));
  auto task = [this, kept, body = std::move(body)] {
    const std::uint64_t id = kept->message.head.id;
    if (std::chrono::steady_clock::now() >= kept->deadline) {
      return refuse(*kept, FailureKind::timeout, {}, "no thread was free for it in time");
    }
    if (closing_) return refuse(*kept, FailureKind::shut_down, {}, "it was shut down");
    Payload result;
    try {
      Reader in(kept->message.payload);
      Writer out(result);
      body(Caller{.name = kept->connection->peer_name()}, in, out);
    } catch (const BadMessage& error) {
      return refuse(*kept, FailureKind::bad_message, {}, error.what());
    } catch (...) {
      const Failure failure = current_failure();
      return refuse(*kept, failure.kind, failure.detail, failure.message);
    }
    if (size_of(result) > options_.max_message_bytes || result.blobs.size() > kMaxBlobs) {
      return refuse(*kept, FailureKind::bad_message, {},
                    concat("the answer has ", size_of(result), " bytes and ", result.blobs.size(),
                           " tensors; at most ", options_.max_message_bytes,
                           " (max_message_bytes) and ", kMaxBlobs, " are allowed"));
    }
    kept->message.payload = {};  // memory that was lent goes back before the answer goes out
    kept->connection->answer(id, std::move(result));
  };
  if (strand) {
    pool_->run_on(strand, std::move(task));
  } else {
    pool_->run(std::move(task));
  }
}

// What an object's destructor does may take long: not on the loop's thread.
void AgentCore::let_go(std::vector<std::shared_ptr<Object>> objects) {
  for (std::shared_ptr<Object>& object : objects) {
    const std::shared_ptr<HandlerPool::Strand> strand = object->strand;
    auto task = [kept = std::move(object)]() mutable { kept.reset(); };
    if (strand) {
      pool_->run_on(strand, std::move(task));
    } else {
      pool_->run(std::move(task));
    }
  }
}

void AgentCore::on_drop_object(Connection& connection, std::uint64_t number) {
  std::vector<std::shared_ptr<Object>> dropped;
  {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(number);
    if (found == objects_.end() || found->second->holder != connection.number()) return;
    dropped.push_back(std::move(found->second));
    objects_.erase(found);
  }
  let_go(std::move(dropped));
}

void AgentCore::on_closed(Connection& connection) {
  std::vector<std::shared_ptr<Object>> dropped;
  {
    const std::lock_guard lock(mutex_);
    for (auto each = objects_.begin(); each != objects_.end();) {
      if (each->second->holder != connection.number()) {
        ++each;
        continue;
      }
      dropped.push_back(std::move(each->second));
      each = objects_.erase(each);
    }
  }
  let_go(std::move(dropped));
  connections_->remove(connection.number());
}

}  // namespace lockstep::rpc::detail
