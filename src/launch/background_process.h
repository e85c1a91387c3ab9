#pragma once

#include <initializer_list>
#include <string_view>

namespace lockstep {

/// Gives every signal that cannot mean a bug of this process (SIGSEGV and its like) to oblivion,
/// SIGKILL and SIGSTOP apart. SIGCHLD and the others get their default action. Handlers are gone.
void ignore_what_can_be_ignored();

/// Closes every descriptor but the standard three and these.
void close_all_but(std::initializer_list<int> kept);

/// How `ps` and `pkill -f` see this process from now on, in place of its command line. Overwrites
/// the argv that main() was given, so it is for a process that has no more use for that. Does as
/// much as the system permits.
void set_process_title(std::string_view title);

}  // namespace lockstep
