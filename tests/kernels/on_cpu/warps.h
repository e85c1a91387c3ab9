#pragma once

// What the lanes of a warp do together. (Exchanges of values are in cuda_words.h.)

namespace lockstep::kernels::on_cpu {

void load_matrices(unsigned address, unsigned (&pairs)[4]);
void store_matrices(unsigned address, const unsigned (&pairs)[4]);

}  // namespace lockstep::kernels::on_cpu
