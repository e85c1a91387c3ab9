#pragma once

#include <string>
#include <vector>

#include "lockstep/gpt2.h"
#include "lockstep/pipeline.h"

namespace lockstep {

/// A GPT-2 as a list for a Pipeline: "embed" (ids [B, T] to activations), "h0", "h1", ... (a block
/// each), "head" (the last norm, and logits [B, T, vocab_size]). Parameters have the names of Gpt2
/// behind that of their part: "embed.wte.weight", "h3.attn.c_attn.weight", "head.ln_f.weight". In
/// snapshots they have those of Gpt2.
struct Gpt2Parts {
  std::vector<PipelinePart> parts;  // costs are parameters that are multiplied with
  /// For PipelineOptions::ties: where the model's head is tied, "head.wte.weight" is a copy of
  /// "embed.wte.weight".
  std::vector<std::vector<std::string>> ties;
};

/// The parts use the model's own parameters: give up the model and this list after the Pipeline is
/// made, and a rank keeps those of its stage.
Gpt2Parts gpt2_parts(const Gpt2& model);

/// For PipelineOptions::loss: the mean over the labels of a micro-batch, targets[0], that are not
/// kIgnoredLabel. Labels are shifted already, as in Gpt2.
at::Tensor gpt2_parts_loss(const Tensors& outputs, const Tensors& targets);

}  // namespace lockstep
