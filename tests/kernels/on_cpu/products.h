#pragma once

// Products of tiles by four warps, which the device does on its own.

#include "tests/kernels/on_cpu/group.h"

namespace lockstep::kernels::on_cpu {

void multiply(const Product& product);

void begin_products();
void end_product_group();
void wait_for_products(unsigned groups);

}  // namespace lockstep::kernels::on_cpu
