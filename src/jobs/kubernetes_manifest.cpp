#include <algorithm>
#include <cctype>

#include <nlohmann/json.hpp>

#include "cluster/start_command.h"
#include "jobs/job_script.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// JSON's strings are YAML's double-quoted ones.
std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument(concat("'", text, "' is not UTF-8, which a manifest must be"));
  }
}

// Kubernetes' names are parts of host names. The pods' have more after them.
std::string dns_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0
                ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                : '-';
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
  if (name.empty() || name.size() > 40) {
    throw InvalidArgument(
        concat("--job-name is '", text, "'; Kubernetes needs 1 to 40 letters, digits and dashes"));
  }
  return name;
}

struct Variable {
  std::string name;
  std::string value;  // YAML after the name, at its indentation
};

std::string literal(const std::string& value) {
  return concat("value: ", quoted(value));
}

std::string variables(const JobOptions& options, const std::string& name,
                      const std::string& secret) {
  // lockstep run reads these as torchrun does.
  std::vector<Variable> all{
      {"PET_NNODES", literal(concat(options.nodes))},
      {"PET_RDZV_BACKEND", literal("c10d")},
      {"PET_RDZV_ID", literal(name)},
      {"PET_RDZV_ENDPOINT", literal(concat(name, "-workers-0-0.", name, ":", options.port))},
      {"PET_NODE_RANK",
       "valueFrom:\n                  fieldRef:\n                    fieldPath: "
       "metadata.annotations['batch.kubernetes.io/job-completion-index']"},
      {"LOCKSTEP_SECRET", concat("valueFrom:\n                  secretKeyRef:\n"
                                 "                    name: ",
                                 quoted(secret), "\n                    key: secret")},
  };
  for (const auto& [key, value] : options.environment) all.push_back({key, literal(value)});
  std::string text;
  for (const Variable& each : all) {
    text +=
        concat("              - name: ", quoted(each.name), "\n                ", each.value, "\n");
  }
  return text;
}

std::string resources(const JobOptions& options) {
  std::string text;
  if (options.gpus_per_node) {
    text += concat("                  nvidia.com/gpu: \"", *options.gpus_per_node, "\"\n");
  }
  if (options.cpus_per_node) {
    text += concat("                  cpu: \"", *options.cpus_per_node, "\"\n");
  }
  if (options.memory) text += concat("                  memory: ", quoted(*options.memory), "\n");
  return text.empty() ? "" : concat("              resources:\n                limits:\n", text);
}

std::string command(const JobOptions& options) {
  std::string text;
  const auto add = [&](const std::string& word) {
    text += concat("              - ", quoted(word), "\n");
  };
  add(options.lockstep);
  add("run");
  // A stop leaves the ranks the time to save, and the launcher some to say how it went.
  add(concat("--shutdown-timeout=", std::max<std::int64_t>(1, options.warning.count() - 5)));
  for (const std::string& word : options.run_words) add(word);
  return text;
}

std::string mounts(const JobOptions& options) {
  std::string text =
      "              volumeMounts:\n              - name: shm\n"
      "                mountPath: /dev/shm\n";
  for (std::size_t i = 0; i < options.volumes.size(); ++i) {
    text += concat("              - name: volume-", i,
                   "\n                mountPath: ", quoted(options.volumes[i].second), "\n");
  }
  return text;
}

std::string volumes(const JobOptions& options) {
  // Ranks of a machine reduce through shared memory; a container has 64 MiB of it by default.
  std::string text =
      "            volumes:\n            - name: shm\n              emptyDir:\n"
      "                medium: Memory\n";
  if (options.shared_memory) {
    text += concat("                sizeLimit: ", quoted(*options.shared_memory), "\n");
  }
  for (std::size_t i = 0; i < options.volumes.size(); ++i) {
    text += concat("            - name: volume-", i,
                   "\n              persistentVolumeClaim:\n                claimName: ",
                   quoted(options.volumes[i].first), "\n");
  }
  return text;
}

// Exit code 75 and pods that Kubernetes takes away start all again; any other failure is final.
std::string failure_policy(const JobOptions& options) {
  if (!options.requeue) return "  failurePolicy:\n    maxRestarts: 0\n";
  return concat("  failurePolicy:\n    maxRestarts: ", options.max_requeues,
                "\n    rules:\n    - name: failed\n      action: FailJobSet\n"
                "      onJobFailureReasons:\n      - PodFailurePolicy\n");
}

constexpr std::string_view kPodFailurePolicy = R"(        podFailurePolicy:
          rules:
          - action: Count
            onPodConditions:
            - type: DisruptionTarget
          - action: FailJob
            onExitCodes:
              containerName: lockstep
              operator: NotIn
              values: [75]
)";

}  // namespace

std::string kubernetes_manifest(const JobOptions& options) {
  if (options.image.empty()) {
    throw InvalidArgument("--image is missing: the container that has lockstep and the program");
  }
  const std::string name = dns_name(options.job_name);
  const std::string secret = options.secret.empty() ? name + "-secret" : options.secret;
  const std::string metadata =
      options.name_space ? concat("  namespace: ", quoted(*options.name_space), "\n") : "";
  const std::string name_space =
      options.name_space ? concat(" --namespace ", shell_quoted(*options.name_space)) : "";
  return concat(
      "# Written by `lockstep manifest`. Needs JobSet (jobset.sigs.k8s.io), and the secret that "
      "the\n"
      "# nodes of the job share:\n#   kubectl create secret generic ",
      shell_quoted(secret), name_space,
      " --from-literal=secret=\"$(head -c 32 /dev/urandom | base64)\"\n",
      "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata:\n  name: ", quoted(name), "\n",
      metadata, "spec:\n  network:\n    enableDNSHostnames: true\n    subdomain: ", quoted(name),
      "\n    publishNotReadyAddresses: true\n", failure_policy(options),
      "  replicatedJobs:\n  - name: workers\n    replicas: 1\n    template:\n      spec:\n"
      "        completionMode: Indexed\n        parallelism: ",
      options.nodes, "\n        completions: ", options.nodes, "\n        backoffLimit: 0\n",
      options.requeue ? kPodFailurePolicy : "",
      "        template:\n          spec:\n            restartPolicy: Never\n"
      "            terminationGracePeriodSeconds: ",
      options.warning.count(),
      "\n            containers:\n            - name: lockstep\n"
      "              image: ",
      quoted(options.image), "\n              command:\n", command(options), "              env:\n",
      variables(options, name, secret),
      "              ports:\n"
      "              - containerPort: ",
      options.port, "\n", resources(options), mounts(options), volumes(options));
}

}  // namespace lockstep
