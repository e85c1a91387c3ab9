/* lockstep for C, and for languages that can call C.
 *
 * Bindings of libtorch (javacpp, TorchSharp, torch for R) have tensors and autograd of their own
 * and lack the rest: meeting, collectives, data-parallel training. A tensor crosses this interface
 * as the binding's pointer to an at::Tensor; it is never freed here.
 *
 * Every function that can fail returns a status; lockstep_last_error() then tells, in one line,
 * what happened in the calling thread. No C++ exception leaves this interface. Options structs
 * begin with their own size, so that a program built against an older header keeps working.
 *
 * Threads: as for the C++ classes behind it, one thread uses a world and what was made from it;
 * lockstep_abort() may be called from any thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_API __attribute__((visibility("default")))

typedef enum lockstep_status {
  LOCKSTEP_OK = 0,
  LOCKSTEP_INVALID_ARGUMENT = 1,
  LOCKSTEP_TIMEOUT = 2,
  LOCKSTEP_PEER_LOST = 3,
  LOCKSTEP_ABORTED = 4,
  LOCKSTEP_UNUSED_PARAMETERS = 5,
  LOCKSTEP_ERROR = 6
} lockstep_status;

typedef enum lockstep_reduce_op {
  LOCKSTEP_SUM = 0,
  LOCKSTEP_AVG = 1,
  LOCKSTEP_PRODUCT = 2,
  LOCKSTEP_MIN = 3,
  LOCKSTEP_MAX = 4
} lockstep_reduce_op;

typedef enum lockstep_dtype {
  LOCKSTEP_FLOAT32 = 0,
  LOCKSTEP_FLOAT64 = 1,
  LOCKSTEP_INT32 = 2,
  LOCKSTEP_INT64 = 3
} lockstep_dtype;

typedef struct lockstep_world lockstep_world;
typedef struct lockstep_ddp lockstep_ddp;
typedef struct lockstep_sampler lockstep_sampler;
typedef struct lockstep_tensor lockstep_tensor; /* an at::Tensor */

/* The text belongs to the library and is valid until the thread's next failing call. */
LOCKSTEP_API const char* lockstep_last_error(void);
/* "0.1.0"; the torch release it was built with, which must be the one at run time: "2.13.0". */
LOCKSTEP_API const char* lockstep_version(void);
LOCKSTEP_API const char* lockstep_torch_version(void);

/* ---- tensors, for programs without a binding ---- */

/* A view of memory that the caller owns and keeps alive. */
LOCKSTEP_API lockstep_status lockstep_tensor_from_blob(void* data, const int64_t* sizes,
                                                       size_t dimensions, lockstep_dtype dtype,
                                                       lockstep_tensor** tensor);
/* Only for tensors made by this interface. */
LOCKSTEP_API void lockstep_tensor_free(lockstep_tensor* tensor);

/* ---- meeting ---- */

typedef struct lockstep_init_options {
  size_t size_of_struct;
  const char* init_method; /* "env://", "tcp://host:port", "file:///path" */
  const char* backend;     /* "auto", "gloo", "shm", "nccl"; "": nccl for CUDA, auto for the CPU */
  const char* device;      /* "": CUDA device local_rank if there is one, else the CPU */
  int rank;                /* -1: from the environment or the URL */
  int world_size;          /* -1: likewise */
  int64_t timeout_ms;
  int64_t rendezvous_timeout_ms;
  int64_t epoch; /* -1: how many worlds this process has formed there before */
} lockstep_init_options;

LOCKSTEP_API void lockstep_init_options_default(lockstep_init_options* options);
/* `options` may be NULL. */
LOCKSTEP_API lockstep_status lockstep_init(const lockstep_init_options* options,
                                           lockstep_world** world);
/* Destroy what was made from the world first. */
LOCKSTEP_API void lockstep_destroy(lockstep_world* world);
LOCKSTEP_API lockstep_status lockstep_abort(lockstep_world* world);

LOCKSTEP_API int lockstep_rank(const lockstep_world* world);
LOCKSTEP_API int lockstep_world_size(const lockstep_world* world);
LOCKSTEP_API int lockstep_local_rank(const lockstep_world* world);

LOCKSTEP_API lockstep_status lockstep_barrier(lockstep_world* world);
LOCKSTEP_API lockstep_status lockstep_all_reduce(lockstep_world* world, lockstep_tensor* tensor,
                                                 lockstep_reduce_op op);
LOCKSTEP_API lockstep_status lockstep_broadcast(lockstep_world* world, lockstep_tensor* tensor,
                                                int root);

/* ---- data-parallel training over a list of tensors ---- */

typedef struct lockstep_ddp_options {
  size_t size_of_struct;
  double bucket_cap_mb; /* 0: 25, with a first bucket of 1 */
  int find_unused_parameters;
  int static_graph;
  int gradient_as_bucket_view; /* 1 by default */
  int native_reduction;        /* 0: the library's choice, see docs/determinism.md */
} lockstep_ddp_options;

LOCKSTEP_API void lockstep_ddp_options_default(lockstep_ddp_options* options);
/* `parameters` require gradients and have the same order, names and shapes on every rank. They get
 * rank 0's values. `options` may be NULL. */
LOCKSTEP_API lockstep_status lockstep_ddp_create(lockstep_world* world,
                                                 lockstep_tensor* const* parameters,
                                                 const char* const* names, size_t count,
                                                 const lockstep_ddp_options* options,
                                                 lockstep_ddp** ddp);
LOCKSTEP_API void lockstep_ddp_destroy(lockstep_ddp* ddp);

/* Around every forward. The outputs may be replaced: go on with what the pointers then hold. The
 * backward that follows leaves the mean over all ranks in the gradients; its failure reaches the
 * caller as the binding's own error, with this library's message. */
LOCKSTEP_API lockstep_status lockstep_ddp_before_forward(lockstep_ddp* ddp);
LOCKSTEP_API lockstep_status lockstep_ddp_after_forward(lockstep_ddp* ddp,
                                                        lockstep_tensor* const* outputs,
                                                        size_t count);
/* 0: backwards whose forward comes now add to the local gradients (no_sync); 1: reduce again. */
LOCKSTEP_API lockstep_status lockstep_ddp_set_sync(lockstep_ddp* ddp, int sync);
LOCKSTEP_API lockstep_status lockstep_ddp_zero_grad(lockstep_ddp* ddp);

/* ---- which samples this rank reads ---- */

typedef struct lockstep_sampler_options {
  size_t size_of_struct;
  int64_t dataset_size;
  int world_size;
  int rank;
  int shuffle;
  uint64_t seed;
  int drop_last;
} lockstep_sampler_options;

LOCKSTEP_API void lockstep_sampler_options_default(lockstep_sampler_options* options);
LOCKSTEP_API lockstep_status lockstep_sampler_create(const lockstep_sampler_options* options,
                                                     lockstep_sampler** sampler);
LOCKSTEP_API void lockstep_sampler_destroy(lockstep_sampler* sampler);
LOCKSTEP_API void lockstep_sampler_set_epoch(lockstep_sampler* sampler, int64_t epoch);
LOCKSTEP_API int64_t lockstep_sampler_size(const lockstep_sampler* sampler);
/* Writes lockstep_sampler_size() indices; refuses a smaller capacity. */
LOCKSTEP_API lockstep_status lockstep_sampler_indices(const lockstep_sampler* sampler,
                                                      int64_t* indices, size_t capacity);

#ifdef __cplusplus
}
#endif
