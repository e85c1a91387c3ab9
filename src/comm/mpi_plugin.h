#pragma once

#include <cstddef>
#include <cstdint>

// Between the library and the plugin that speaks MPI. The plugin is loaded when backend mpi is
// asked for, so that nothing else needs an MPI. C, so that neither side's exceptions or classes
// reach the other. One thread calls all functions: the one that called start().

extern "C" {

enum LockstepMpiType {
  kMpiU8,
  kMpiU16,
  kMpiU32,
  kMpiU64,
  kMpiI8,
  kMpiI16,
  kMpiI32,
  kMpiI64,
  kMpiF32,
  kMpiF64
};
enum LockstepMpiReduction {
  kMpiSum,
  kMpiProduct,
  kMpiMin,
  kMpiMax,
  kMpiBitAnd,
  kMpiBitOr,
  kMpiBitXor
};
enum LockstepMpiKind {
  kMpiBarrier,
  kMpiBroadcast,      // in place, from `peer`
  kMpiAllReduce,      // in place
  kMpiReduce,         // in place at `peer`
  kMpiAllGather,      // `count` of each rank
  kMpiGather,         // the same, to `peer`
  kMpiScatter,        // `count` for each rank, from `peer`
  kMpiReduceScatter,  // `count` for each rank
  kMpiAllToAll,       // by the four lists
  kMpiSend,           // to `peer`
  kMpiReceive         // from `peer`; -1: from any
};

// An operation of a group. Memory and lists must stay until it has ended.
struct LockstepMpiOperation {
  void* group;
  LockstepMpiKind kind;
  LockstepMpiType type;
  LockstepMpiReduction reduction;
  const void* from;
  void* to;
  std::int64_t count;  // elements
  int peer;            // a rank of the group
  int tag;
  const int* send_counts;  // elements for each rank, and where they begin
  const int* send_places;
  const int* receive_counts;
  const int* receive_places;
};

// What goes wrong is put into `error`, a text of at most `error_bytes`.
struct LockstepMpi {
  // How many ranks the job has and which this is; false when MPI cannot be started.
  bool (*start)(int* rank, int* size, char* error, std::size_t error_bytes);
  // Waits for the other ranks.
  void (*finish)();
  // Called by the members alone, all of them with the same ranks and tag. Null when it fails.
  // Groups stay until finish().
  void* (*make_group)(const int* ranks, int count, int tag, char* error, std::size_t error_bytes);
  // Null when it fails; otherwise for test().
  void* (*begin)(const LockstepMpiOperation* operation, char* error, std::size_t error_bytes);
  // 1: it has ended, 0: not yet, -1: it has failed. `source`: who sent.
  int (*test)(void* request, int* source, char* error, std::size_t error_bytes);
};
}

// What the plugin exports: a LockstepMpi.
#define LOCKSTEP_MPI_FUNCTIONS "lockstep_mpi_functions_v1"
