#include "aten/single_threaded.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>

namespace lockstep {

void run_operators_single_threaded() {
  // at::set_num_threads() would also set what threads begin with that start later. OpenMP's own
  // call is for the calling thread alone, but ATen overrides it the first time a thread runs an
  // operator: this call lets that happen first.
  at::get_num_threads();
  // libtorch brings its own libgomp; the symbol that it uses is found without linking another.
  if (void* symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(symbol)(1);
  }
}

}  // namespace lockstep
