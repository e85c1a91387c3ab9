#pragma once

#include <cstddef>

#include "kernels/stream.h"

namespace lockstep::kernels {

/// Tokens [batch, length] of a vocabulary, in rows of `columns` bfloat16s, a multiple of 8.
struct EmbeddingShape {
  int batch = 0;
  int length = 0;
  int columns = 0;
  int vocabulary = 0;
};

/// out[b, t] = tokens[ids[b, t]] + positions[t]. Ids must lie in the vocabulary.
void embedding_forward(const std::int64_t* ids, const Bf16* tokens, const Bf16* positions,
                       Bf16* out, EmbeddingShape shape, Stream stream);

/// dpositions[t] = the sum of dout[b, t] over b; dtokens[id] += the sum of the rows of dout whose
/// id it is. Sums are taken in the order of the positions: the same bits each time.
///
/// `scratch` has embedding_backward_scratch() bytes. Rows of `dtokens` without a token are not
/// touched, so that a tied head's gradient may lie there already.
std::size_t embedding_backward_scratch(EmbeddingShape shape);
void embedding_backward(const std::int64_t* ids, const Bf16* dout, float* dtokens,
                        float* dpositions, void* scratch, EmbeddingShape shape, Stream stream);

}  // namespace lockstep::kernels
