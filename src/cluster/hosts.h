#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A machine on which a job runs.
struct Host {
  std::string name;                    // as ssh, srun or the resolver takes it
  std::optional<int> slots = {};       // workers, where nobody says otherwise
  std::vector<int> gpus = {};          // those to use; empty: all
  std::optional<int> task_index = {};  // by which a batch system knows it, where that differs

  bool operator==(const Host&) const = default;
};

/// The machines that --hosts names: "a,b:4,c[1-3],d[5-6]:2". Throws InvalidArgument, naming
/// `option`, for text that is no such list or names a machine twice.
std::vector<Host> hosts_of(std::string_view list, const std::string& option = "--hosts");

/// The machines of a hostfile, whose text this is: one a line, as Open MPI ("n1 slots=4", "n1:4")
/// and DeepSpeed write it, "n2 gpus=0,2", or plain names, of which each line more is a slot more.
/// '#' begins a comment. Throws InvalidArgument naming the file and the line.
std::vector<Host> hosts_of_file(std::string_view text, const std::string& path);

/// Machines and slots by plain names, each line a slot, as PBS writes $PBS_NODEFILE.
std::vector<Host> hosts_of_nodefile(std::string_view text, const std::string& path);

/// What --include and --exclude leave of the machines, in DeepSpeed's notation: "n1@n2:0,2" is n1
/// and, of n2, GPUs 0 and 2. Throws InvalidArgument for machines that are not among them, and when
/// nothing is left.
std::vector<Host> chosen_hosts(std::vector<Host> hosts, const std::optional<std::string>& include,
                               const std::optional<std::string>& exclude);

/// "n1, n2 and n3", or "n1, n2, ... n64" of many.
std::string list_hosts(const std::vector<Host>& hosts);

}  // namespace lockstep
