// Padding of a micro-batch that is cut over ranks: every rank of a context-parallel group takes the same share of every document. Integer
// code; knows nothing of ranks.
#pragma once

#include <cstdint>

#include "src/data/batch.h"

namespace deltron {

// Lengthens every document to a multiple of `document_multiple`, then the last one until all tokens together are a multiple of
// `total_multiple`, by tokens that stand at its end and are left out of the loss: nothing that counts can see them. An empty document is
// dropped. Padding has id 0, the positions that follow, and addresses of random decisions beyond its sample's own.
void pad_documents(HostBatch& batch, std::int64_t document_multiple, std::int64_t total_multiple);

}  // namespace deltron
