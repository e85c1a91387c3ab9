#include "comm/mpi_plugin.h"

#include <climits>
#include <cstdio>
#include <memory>
#include <string>

#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>

namespace {

struct Group {
  MPI_Comm communicator = MPI_COMM_NULL;
};

struct Request {
  MPI_Request native = MPI_REQUEST_NULL;
};

struct Text {
  char* data;
  std::size_t bytes;

  void set(const std::string& text) const { std::snprintf(data, bytes, "%s", text.c_str()); }
  bool is_good(int code) const {
    if (code == MPI_SUCCESS) return true;
    char words[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, words, &length);
    set(words);
    return false;
  }
};

MPI_Datatype native_type(LockstepMpiType type) {
  switch (type) {
    case kMpiU8:
      return MPI_UINT8_T;
    case kMpiU16:
      return MPI_UINT16_T;
    case kMpiU32:
      return MPI_UINT32_T;
    case kMpiU64:
      return MPI_UINT64_T;
    case kMpiI8:
      return MPI_INT8_T;
    case kMpiI16:
      return MPI_INT16_T;
    case kMpiI32:
      return MPI_INT32_T;
    case kMpiI64:
      return MPI_INT64_T;
    case kMpiF32:
      return MPI_FLOAT;
    case kMpiF64:
      return MPI_DOUBLE;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op native_reduction(LockstepMpiReduction reduction) {
  switch (reduction) {
    case kMpiSum:
      return MPI_SUM;
    case kMpiProduct:
      return MPI_PROD;
    case kMpiMin:
      return MPI_MIN;
    case kMpiMax:
      return MPI_MAX;
    case kMpiBitAnd:
      return MPI_BAND;
    case kMpiBitOr:
      return MPI_BOR;
    case kMpiBitXor:
      return MPI_BXOR;
  }
  return MPI_OP_NULL;
}

bool start(int* rank, int* size, char* error, std::size_t error_bytes) {
  const Text text{error, error_bytes};
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    text.set("the program has called MPI_Init by itself; leave that to lockstep");
    return false;
  }
  int provided = MPI_THREAD_SINGLE;
  if (!text.is_good(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided)))
    return false;
  if (provided < MPI_THREAD_FUNNELED) {
    text.set("this MPI cannot be used by a program with threads");
    return false;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return text.is_good(MPI_Comm_rank(MPI_COMM_WORLD, rank)) &&
         text.is_good(MPI_Comm_size(MPI_COMM_WORLD, size));
}

void finish() {
  MPI_Finalize();
}

void* make_group(const int* ranks, int count, int tag, char* error, std::size_t error_bytes) {
  const Text text{error, error_bytes};
  MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  auto group = std::make_unique<Group>();
  const bool made =
      text.is_good(MPI_Comm_group(MPI_COMM_WORLD, &world)) &&
      text.is_good(MPI_Group_incl(world, count, ranks, &members)) &&
      text.is_good(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &group->communicator));
  if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
  if (world != MPI_GROUP_NULL) MPI_Group_free(&world);
  if (!made) return nullptr;
  MPI_Comm_set_errhandler(group->communicator, MPI_ERRORS_RETURN);
  return group.release();
}

// Whether buffers are distinct or one, MPI_IN_PLACE says by the first pointer.
int begin_native(const LockstepMpiOperation& o, MPI_Comm group, MPI_Request* request) {
  const MPI_Datatype type = native_type(o.type);
  const MPI_Op reduction = native_reduction(o.reduction);
  const int count = static_cast<int>(o.count);
  int rank = 0;
  MPI_Comm_rank(group, &rank);
  switch (o.kind) {
    case kMpiBarrier:
      return MPI_Ibarrier(group, request);
    case kMpiBroadcast:
      return MPI_Ibcast(o.to, count, type, o.peer, group, request);
    case kMpiAllReduce:
      return MPI_Iallreduce(MPI_IN_PLACE, o.to, count, type, reduction, group, request);
    case kMpiReduce:
      if (rank == o.peer) {
        return MPI_Ireduce(MPI_IN_PLACE, o.to, count, type, reduction, o.peer, group, request);
      }
      return MPI_Ireduce(o.to, nullptr, count, type, reduction, o.peer, group, request);
    case kMpiAllGather:
      return MPI_Iallgather(o.from, count, type, o.to, count, type, group, request);
    case kMpiGather:
      return MPI_Igather(o.from, count, type, o.to, count, type, o.peer, group, request);
    case kMpiScatter:
      return MPI_Iscatter(o.from, count, type, o.to, count, type, o.peer, group, request);
    case kMpiReduceScatter:
      return MPI_Ireduce_scatter_block(o.from, o.to, count, type, reduction, group, request);
    case kMpiAllToAll:
      return MPI_Ialltoallv(o.from, o.send_counts, o.send_places, type, o.to, o.receive_counts,
                            o.receive_places, type, group, request);
    case kMpiSend:
      return MPI_Isend(o.from, count, type, o.peer, o.tag, group, request);
    case kMpiReceive:
      return MPI_Irecv(o.to, count, type, o.peer < 0 ? MPI_ANY_SOURCE : o.peer, o.tag, group,
                       request);
  }
  return MPI_ERR_ARG;
}

void* begin(const LockstepMpiOperation* operation, char* error, std::size_t error_bytes) {
  const Text text{error, error_bytes};
  if (operation->count > INT_MAX) {
    text.set(
        "a tensor has more than 2^31 - 1 elements for one rank, which MPI does not take; split it");
    return nullptr;
  }
  auto request = std::make_unique<Request>();
  const MPI_Comm communicator = static_cast<Group*>(operation->group)->communicator;
  if (!text.is_good(begin_native(*operation, communicator, &request->native))) return nullptr;
  return request.release();
}

int test(void* request, int* source, char* error, std::size_t error_bytes) {
  const Text text{error, error_bytes};
  auto* pending = static_cast<Request*>(request);
  int ended = 0;
  MPI_Status status;
  const int code = MPI_Test(&pending->native, &ended, &status);
  if (!text.is_good(code)) {
    delete pending;
    return -1;
  }
  if (ended == 0) return 0;
  *source = status.MPI_SOURCE;
  delete pending;
  return 1;
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const LockstepMpi lockstep_mpi_functions_v1 = {start, finish, make_group, begin, test};
