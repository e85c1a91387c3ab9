#include "doctor/local_checks.h"

#include "doctor/accelerator_facts.h"
#include "doctor/python_facts.h"
#include "doctor/shared_folder.h"
#include "doctor/system_facts.h"

namespace lockstep {

LocalReport check_this_machine(const LocalCheckOptions& options, const Environment& environment) {
  LocalReport report;
  report.network = read_network();
  report.host = report.network.host;
  FindingList list(report.host, report.findings);

  const SystemFacts system = read_system(environment, options.lockstep_version);
  const PythonFacts python = read_python(environment);
  const AcceleratorFacts accelerators = read_accelerators(environment, python);
  judge_system(system,
               {.several_nodes = options.several_nodes,
                .has_infiniband = report.network.has_active_rdma(),
                .workers = std::max(1, accelerators.gpus)},
               list);
  judge_python(python, list);
  judge_network(report.network, options.several_nodes, list);
  judge_accelerators(accelerators, python, list);
  judge_nccl_environment(environment, accelerators, report.network, options.several_nodes, list);
  if (!options.shared_folder.empty()) {
    judge_shared_folder(read_shared_folder(options.shared_folder), list);
  }

  report.gpus = accelerators.gpus;
  if (python.has_torch()) report.python = python.python;
  report.traits = {
      {"lockstep", system.lockstep_version},
      {"architecture", system.architecture},
      {"python", python.version},
      {"torch", python.torch_version},
      {"GPUs", std::to_string(accelerators.gpus)},
      {"GPU driver", accelerators.driver},
      {"NCCL",
       accelerators.nccl_version ? nccl_version_text(*accelerators.nccl_version) : std::string()}};
  return report;
}

}  // namespace lockstep
