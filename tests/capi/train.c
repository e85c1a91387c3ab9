/* A C program that trains a linear model on several ranks. Its tensors and autograd come from a
 * small stand-in for a language binding (binding.cpp); everything else is the C API. Exits with 0
 * when all that it checks holds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "lockstep/lockstep.h"

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #condition, \
              lockstep_last_error());                                                   \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

static void check_tensors(lockstep_world* world) {
  const int64_t sizes[] = {2, 2};
  float values[] = {1, 2, 3, 4};
  lockstep_tensor* tensor = NULL;
  CHECK(lockstep_tensor_from_blob(values, sizes, 2, LOCKSTEP_FLOAT32, &tensor) == LOCKSTEP_OK);
  CHECK(lockstep_all_reduce(world, tensor, LOCKSTEP_SUM) == LOCKSTEP_OK);
  CHECK(values[3] == 4.0f * (float)lockstep_world_size(world));
  values[0] = (float)lockstep_rank(world);
  CHECK(lockstep_broadcast(world, tensor, 1) == LOCKSTEP_OK);
  CHECK(values[0] == 1.0f);
  CHECK(lockstep_broadcast(world, tensor, 9) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(strstr(lockstep_last_error(), "root 9") != NULL);
  CHECK(lockstep_all_reduce(world, NULL, LOCKSTEP_SUM) == LOCKSTEP_INVALID_ARGUMENT);
  lockstep_tensor_free(tensor);
}

static void check_sampler(lockstep_world* world) {
  lockstep_sampler_options options;
  lockstep_sampler_options_default(&options);
  options.dataset_size = 10;
  options.world_size = lockstep_world_size(world);
  options.rank = lockstep_rank(world);
  options.shuffle = 0;
  lockstep_sampler* sampler = NULL;
  CHECK(lockstep_sampler_create(&options, &sampler) == LOCKSTEP_OK);
  lockstep_sampler_set_epoch(sampler, 3);
  CHECK(lockstep_sampler_size(sampler) == 5);
  int64_t indices[5];
  CHECK(lockstep_sampler_indices(sampler, indices, 5) == LOCKSTEP_OK);
  for (int i = 0; i < 5; ++i) CHECK(indices[i] == 2 * i + lockstep_rank(world));
  CHECK(lockstep_sampler_indices(sampler, indices, 4) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(strstr(lockstep_last_error(), "capacity is 4") != NULL);
  lockstep_sampler_destroy(sampler);
  options.rank = 7;
  CHECK(lockstep_sampler_create(&options, &sampler) == LOCKSTEP_INVALID_ARGUMENT);
  memset(&options, 0, sizeof(options));
  CHECK(lockstep_sampler_create(&options, &sampler) == LOCKSTEP_INVALID_ARGUMENT);
}

static void check_training(lockstep_world* world) {
  const float rank = (float)lockstep_rank(world);
  /* Other values on every rank: creating the ddp gives all of them rank 0's. */
  lockstep_tensor* weight = binding_parameter(2.0f + rank);
  lockstep_tensor* bias = binding_parameter(1.0f + rank);
  lockstep_tensor* parameters[] = {weight, bias};
  const char* names[] = {"weight", "bias"};
  lockstep_ddp_options options;
  lockstep_ddp_options_default(&options);
  lockstep_ddp* ddp = NULL;
  CHECK(lockstep_ddp_create(world, parameters, names, 0, &options, &ddp) ==
        LOCKSTEP_INVALID_ARGUMENT);
  CHECK(lockstep_ddp_create(world, parameters, names, 2, &options, &ddp) == LOCKSTEP_OK);
  CHECK(binding_value(weight) == 2.0f && binding_value(bias) == 1.0f);

  for (int step = 0; step < 3; ++step) {
    CHECK(lockstep_ddp_zero_grad(ddp) == LOCKSTEP_OK);
    for (int micro = 0; micro < 2; ++micro) {
      CHECK(lockstep_ddp_set_sync(ddp, micro == 1) == LOCKSTEP_OK);
      CHECK(lockstep_ddp_before_forward(ddp) == LOCKSTEP_OK);
      lockstep_tensor* output = binding_linear(weight, bias, 1.0f + rank);
      CHECK(lockstep_ddp_after_forward(ddp, &output, 1) == LOCKSTEP_OK);
      CHECK(binding_backward(output) == 0);
      binding_free(output);
    }
    /* Two micro-batches of input 1 on rank 0 and 2 on rank 1: the mean is 3. */
    CHECK(binding_gradient(weight) == 3.0f && binding_gradient(bias) == 2.0f);
  }
  CHECK(lockstep_ddp_before_forward(ddp) == LOCKSTEP_OK);
  lockstep_tensor* output = binding_linear(weight, NULL, 1.0f); /* the bias goes unused */
  CHECK(lockstep_ddp_after_forward(ddp, &output, 1) == LOCKSTEP_OK);
  CHECK(binding_backward(output) != 0);
  CHECK(strstr(binding_error(), "got no gradient: bias") != NULL);
  binding_free(output);
  lockstep_ddp_destroy(ddp);
  binding_free(weight);
  binding_free(bias);
}

int main(void) {
  lockstep_init_options options;
  lockstep_init_options_default(&options);
  options.rank = 5;
  options.world_size = 2;
  lockstep_world* world = NULL;
  CHECK(lockstep_init(&options, &world) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(strstr(lockstep_last_error(), "rank 5") != NULL);
  CHECK(strchr(lockstep_version(), '.') != NULL && strchr(lockstep_torch_version(), '.') != NULL);

  CHECK(lockstep_init(NULL, &world) == LOCKSTEP_OK);
  CHECK(lockstep_world_size(world) == 2 && lockstep_local_rank(world) == lockstep_rank(world));
  check_tensors(world);
  check_sampler(world);
  check_training(world);
  CHECK(lockstep_barrier(world) == LOCKSTEP_OK);
  CHECK(lockstep_abort(world) == LOCKSTEP_OK);
  CHECK(lockstep_barrier(world) == LOCKSTEP_ABORTED);
  lockstep_destroy(world);
  puts("ok");
  return 0;
}
