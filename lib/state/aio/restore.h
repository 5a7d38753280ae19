// Native AIO contexts made again.
#pragma once

#include "lib/base/result.h"
#include "lib/state/descriptors/inherited.h"
#include "lib/state/tree/child.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// For `make_aio_contexts`: a file without bytes.
Result<int> keep_empty_file(Inherited& inherited);

/// By the process itself, once its other mappings are there: contexts whose rings are moved to where they were, with
/// the kernel's counters where they were and the events that nobody has taken. `readable`: number of the
/// empty file in the child. kNoRoom: more contexts than fs.aio-max-nr allows; kUnsupported: this kernel makes
/// larger rings.
Result<void> make_aio_contexts(const store::ImageReader& image, int process, int readable, Child& child);

}  // namespace ckpt::restore
