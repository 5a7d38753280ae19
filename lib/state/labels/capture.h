// What security modules call a thread, and what they will call what it makes: /proc/PID/task/TID/attr.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/inventory.h"
#include "lib/state/labels/record.h"

namespace ckpt::capture {

/// Whether a module of this kernel tells of labels, be they empty.
bool tells_labels();

/// Nothing where no module is there that tells. kIo: of one that is there it cannot be read.
Result<std::vector<store::SecurityLabel>> read_labels(int pid, int tid);

/// Says of each process that a restore by this ckpt would give others. The rights of whoever restores it are not known
/// here: no obstacle yet.
void note_labels(Inventory& found);

/// What such a file holds: without the zero or the newline at its end, empty for what is not confined at all.
std::string parse_label(std::string_view text);

}  // namespace ckpt::capture
