#pragma once

#include <vector>

#include "lockstep/optimizer.h"

namespace lockstep {

/// The norm of all gradients together, for reports and for seeing whether they are finite: a number
/// on the host. Of small models it is computed here, because five operators would cost more than
/// the rest of the step's accounts; its last bits may then differ from those of grad_norm().
double gradient_norm(const std::vector<NamedParameter>& parameters);

}  // namespace lockstep
