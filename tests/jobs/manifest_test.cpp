#include <gtest/gtest.h>

#include "jobs/job_script.h"
#include "lockstep/error.h"

using lockstep::InvalidArgument;
using lockstep::JobKind;
using lockstep::JobOptions;
using lockstep::kubernetes_manifest;

namespace {

JobOptions some_job() {
  JobOptions options;
  options.kind = JobKind::manifest;
  options.job_name = "train_GPT";
  options.nodes = 3;
  options.image = "registry/train:1";
  options.lockstep = "lockstep";
  options.run_words = {"train.py"};
  return options;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(Manifest, nodes_meet_at_the_first_pod_of_the_service) {
  const std::string text = kubernetes_manifest(some_job());
  EXPECT_TRUE(has(text, "name: \"train-gpt\"")) << text;
  EXPECT_TRUE(has(text, "value: \"train-gpt-workers-0-0.train-gpt:29400\"")) << text;
  EXPECT_TRUE(has(text, "completions: 3")) << text;
}

TEST(Manifest, the_secret_is_not_in_it) {
  const std::string text = kubernetes_manifest(some_job());
  EXPECT_TRUE(has(text, "secretKeyRef")) << text;
  EXPECT_TRUE(has(text, "name: \"train-gpt-secret\"")) << text;
}

TEST(Manifest, the_command_for_the_secret_puts_it_where_the_job_is) {
  JobOptions options = some_job();
  EXPECT_TRUE(has(kubernetes_manifest(options), "generic train-gpt-secret --from-literal"));
  options.name_space = "research";
  const std::string text = kubernetes_manifest(options);
  EXPECT_TRUE(has(text, "generic train-gpt-secret --namespace research --from-literal")) << text;
}

TEST(Manifest, a_name_that_is_none_in_kubernetes_is_refused) {
  JobOptions options = some_job();
  options.job_name = "---";
  EXPECT_THROW(kubernetes_manifest(options), InvalidArgument);
  options.job_name = std::string(41, 'a');
  EXPECT_THROW(kubernetes_manifest(options), InvalidArgument);
}

TEST(Manifest, an_image_is_needed) {
  JobOptions options = some_job();
  options.image.clear();
  EXPECT_THROW(kubernetes_manifest(options), InvalidArgument);
}
