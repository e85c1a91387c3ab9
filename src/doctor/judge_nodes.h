#pragma once

#include "doctor/examination.h"
#include "doctor/finding.h"

namespace lockstep {

/// What follows from looking at several nodes together: who is missing, what differs, whose clock
/// is wrong, which names and addresses lead nowhere, which ways are slow. Pure.
Findings judge_nodes(const Examination& examination);

/// The part of it that is about ways from node to node.
void judge_pairs(const Examination& examination, Findings& findings);

}  // namespace lockstep
